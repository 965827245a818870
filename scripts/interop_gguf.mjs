// What llama.cpp makes of a GGUF file: token ids of strings, and the distribution of the next token at each
// position. llama.cpp comes built by node-llama-cpp; interop_gguf.py runs this.
//
//     node scripts/interop_gguf.mjs DIR MODEL.gguf REQUEST.json OUT
//
// DIR holds node_modules. The request is {"texts": [string, ...], "windows": [[id, ...], ...]}. OUT.json gets
// {"ids": [[id, ...], ...]} without special tokens added, OUT.bin the probabilities, float32 little-endian,
// [window][position][token], with those left out (and told of in "without") that llama.cpp gives no number for.
import {readFileSync, writeFileSync, openSync, writeSync, closeSync} from "node:fs";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import {resolve} from "node:path";

const [dir, gguf, requestFile, out] = process.argv.slice(2);
if (!out) {
    console.error("usage: node interop_gguf.mjs DIR MODEL.gguf REQUEST.json OUT");
    process.exit(2);
}
const entry = createRequire(resolve(dir, "package.json")).resolve("node-llama-cpp");
const {getLlama} = await import(pathToFileURL(entry).href);
const request = JSON.parse(readFileSync(requestFile));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: 2});
const model = await llama.loadModel({modelPath: gguf, vocabOnly: request.windows.length === 0});
const ids = request.texts.map((text) => Array.from(model.tokenize(text, true)));
writeFileSync(out + ".json", JSON.stringify({ids}));
if (request.windows.length > 0) {
    const vocab = request.vocab;
    const length = Math.max(...request.windows.map((w) => w.length));
    const context = await model.createContext({contextSize: length + 8, batchSize: length + 8, threads: 2});
    const sequence = context.getSequence();
    const file = openSync(out + ".bin", "w");
    for (const window of request.windows) {
        await sequence.clearHistory();
        const steps = await sequence.controlledEvaluate(window.map((t) => [t, {generateNext: {probabilities: true}}]));
        for (const step of steps) {
            const row = new Float32Array(vocab);
            for (const [token, p] of step.next.probabilities) row[token] = p;
            writeSync(file, Buffer.from(row.buffer));
        }
    }
    closeSync(file);
    await context.dispose();
}
await model.dispose();
process.exit(0);
