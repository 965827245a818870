// Times llama.cpp's writing of tokens, the most likely one each time, after a prompt of token ids. llama.cpp
// comes built by node-llama-cpp.
//
//     npm install --prefix DIR --ignore-scripts node-llama-cpp@3.22.1
//     lutq tokenize MODEL --text FILE --json > ids.json
//     node scripts/llamacpp_decode.mjs DIR MODEL.gguf ids.json [prompt tokens] [tokens] [runs] [threads]
//
// Prints one JSON object: prompt and written tokens per second of each run, and the processor's
// milliseconds for each token written, which tell more where other work goes on beside.
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {cpus} from "node:os";
import {pathToFileURL} from "node:url";
import {resolve} from "node:path";

const [dir, gguf, idsFile, prompt = "8", tokens = "128", runs = "3", threads = String(cpus().length)] = process.argv.slice(2);
if (!idsFile) {
    console.error("usage: node llamacpp_decode.mjs DIR MODEL.gguf IDS.json [prompt tokens] [tokens] [runs] [threads]");
    process.exit(2);
}
const entry = createRequire(resolve(dir, "package.json")).resolve("node-llama-cpp");
const {getLlama} = await import(pathToFileURL(entry).href);
const llama = await getLlama({gpu: false, build: "never", maxThreads: Number(threads)});
const model = await llama.loadModel({modelPath: gguf});
const n = Number(prompt), more = Number(tokens);
const context = await model.createContext({contextSize: n + more + 1, batchSize: 512, threads: Number(threads)});
const ids = JSON.parse(readFileSync(idsFile)).ids.slice(0, n);
const sequence = context.getSequence();
const wrote = [], read = [], cpu = [];
for (let run = -1; run < Number(runs); run++) { // the first is not counted
    await sequence.clearHistory();
    let start = performance.now(), count = 0, first = 0, used;
    for await (const _ of sequence.evaluate(ids, {temperature: 0, yieldEogToken: true})) {
        if (count++ === 0) {
            first = performance.now();
            used = process.cpuUsage();
        }
        if (count > more) break;
    }
    if (run >= 0) {
        read.push(n / (first - start) * 1000);
        wrote.push(more / (performance.now() - first) * 1000);
        const {user, system} = process.cpuUsage(used);
        cpu.push((user + system) / 1000 / more);
    }
}
console.log(JSON.stringify({model: gguf, prompt: n, tokens: more, threads: Number(threads), prompt_tokens_per_second: read, tokens_per_second: wrote, cpu_ms_per_token: cpu}));
await context.dispose();
