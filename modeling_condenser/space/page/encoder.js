// Encodes a query in the browser, with transformers.js and the encoder of this folder.

import { AutoModel, AutoTokenizer, Tensor, env } from "./npm/transformers.web.min.js";

env.allowLocalModels = true;
env.allowRemoteModels = false;
env.localModelPath = ".";
env.useBrowserCache = false; // it would keep an encoder that was replaced; HTTP has a cache too
env.useWasmCache = false;
const { wasm } = env.backends.onnx;
wasm.wasmPaths = { wasm: new URL("npm/ort-wasm-simd-threaded.wasm", import.meta.url).href };
wasm.numThreads = 1; // threads need headers that a static Space does not send

/**
 * Load the encoder.
 * @param settings query_prompt, and query_max_length in tokens.
 * @param onProgress is told the percentage of the file that has arrived.
 * @returns a function from a query to its vector, a Float32Array.
 */
export async function loadEncoder(settings, onProgress) {
  const tell = ({ status, file, progress }) => {
    if (status === "progress" && file.endsWith(".onnx")) onProgress(progress);
  };
  const tokenizer = await AutoTokenizer.from_pretrained("encoder");
  const model = await AutoModel.from_pretrained("encoder", {
    dtype: "fp32", device: "wasm", progress_callback: tell,
  });
  return async (query) => {
    const ids = tokenize(tokenizer, settings.query_prompt + query, settings.query_max_length);
    const input_ids = new Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
    return (await model({ input_ids })).sentence_embedding.data;
  };
}

/** Token ids, cut to a length as in Python: the special tokens at the end stay. */
function tokenize(tokenizer, text, length) {
  const ids = tokenizer(text, { return_tensor: false }).input_ids;
  if (ids.length <= length) return ids;
  const plain = tokenizer(text, { return_tensor: false, add_special_tokens: false }).input_ids;
  const ending = ids.length - ids.lastIndexOf(plain.at(-1)) - 1;
  return [...ids.slice(0, length - ending), ...ids.slice(ids.length - ending)];
}
