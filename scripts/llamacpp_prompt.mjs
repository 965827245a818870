// Times llama.cpp's prompt processing: windows of token ids through a GGUF model,
// without its output head. llama.cpp comes built by node-llama-cpp.
//
//     npm install --prefix DIR --ignore-scripts node-llama-cpp@3.22.1
//     lutq tokenize MODEL --text FILE --json > ids.json
//     node scripts/llamacpp_prompt.mjs DIR MODEL.gguf ids.json [windows] [ctx] [threads]
//
// Prints one JSON object: the seconds of each window and tokens per second.
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {cpus} from "node:os";
import {pathToFileURL} from "node:url";
import {resolve} from "node:path";

const [dir, gguf, idsFile, windows = "4", ctx = "2048", threads = String(cpus().length)] = process.argv.slice(2);
if (!idsFile) {
    console.error("usage: node llamacpp_prompt.mjs DIR MODEL.gguf IDS.json [windows] [ctx] [threads]");
    process.exit(2);
}
const entry = createRequire(resolve(dir, "package.json")).resolve("node-llama-cpp");
const {getLlama} = await import(pathToFileURL(entry).href);
const llama = await getLlama({gpu: false, build: "never", maxThreads: Number(threads)});
const model = await llama.loadModel({modelPath: gguf});
const n = Number(ctx);
const context = await model.createContext({contextSize: n, batchSize: 512, threads: Number(threads)});
const ids = JSON.parse(readFileSync(idsFile)).ids;
const seconds = [];
const sequence = context.getSequence();
for (let w = -1; w < Number(windows); w++) { // the first is not counted
    const tokens = ids.slice(Math.max(w, 0) * n, (Math.max(w, 0) + 1) * n - 1);
    await sequence.clearHistory();
    const start = performance.now();
    await sequence.evaluateWithoutGeneratingNewTokens(tokens);
    if (w >= 0) seconds.push((performance.now() - start) / 1000);
}
const total = seconds.reduce((a, b) => a + b, 0);
console.log(JSON.stringify({
    model: gguf, windows: Number(windows), ctx: n, threads: Number(threads),
    tokens_per_second: Number(windows) * (n - 1) / total, seconds
}));
await context.dispose();
