// Ranks passages as the Python package does: BM25, int8 vectors, reciprocal rank fusion.
//
// Passages are stored in the order of their ids, and of two equal scores the lower row is first.
// So ties are broken by id, as in Python.

const DEPTH = 100; // passages of each list that are fused
const RRF_K = 60;
// As retrieval/words.py: a run of a script without spaces, or two or more other letters.
const SPACELESS = "[" + ["Han", "Hiragana", "Katakana", "Hangul", "Thai", "Lao", "Khmer", "Myanmar"]
  .map((script) => `\\p{scx=${script}}`).join("") + "]";
const RUN = new RegExp(`(?:(?=${SPACELESS})[\\p{L}\\p{M}\\p{N}])+|(?:(?!${SPACELESS})[\\p{L}\\p{M}\\p{N}_]){2,}`, "gu");
const IS_SPACELESS = new RegExp(`^${SPACELESS}`, "u");
const CHARACTER = /.\p{M}*/gu; // with its vowel signs and tones

const normalise = (text) => text.normalize("NFKC").toLowerCase();

/** The words of a query, as `split_words` in Python. */
export function splitWords(text) {
  const query = normalise(text);
  return findWords(query).map(([start, end]) => query.slice(start, end));
}

/** Where words are: [[start, end]]. Of a run without spaces they are the pairs of adjacent characters. */
function findWords(text) {
  const found = [];
  for (const { 0: run, index } of text.matchAll(RUN)) {
    const ends = IS_SPACELESS.test(run)
      ? [...run.matchAll(CHARACTER)].map((character) => index + character.index + character[0].length)
      : [index + run.length];
    const starts = [index, ...ends];
    if (ends.length === 1) found.push([index, ends[0]]);
    for (let i = 1; i < ends.length; i++) found.push([starts[i - 1], ends[i]]);
  }
  return found;
}

/** A text in parts, [[part, isWord]]: whether it is made of the given words. */
export function markWords(text, words) {
  const parts = [];
  let done = 0;
  for (const [start, end] of findWords(text)) {
    if (!words.has(normalise(text.slice(start, end)))) continue;
    if (start > done || !parts.length) parts.push([text.slice(done, start), false], ["", true]);
    parts.at(-1)[0] += text.slice(Math.max(start, done), end);
    done = end;
  }
  return [...parts, [text.slice(done), false]];
}

/** The index of bm25s: of word w, the passages `rows` and their `scores` from offsets[w] on. */
export class Bm25 {
  constructor(words, buffer, nPassages) {
    this.nPassages = nPassages;
    this.numbers = new Map(words.map((word, i) => [word, i])); // without stopwords
    this.offsets = new Uint32Array(buffer, 0, words.length + 1);
    const n = this.offsets[words.length];
    this.rows = new Uint32Array(buffer, this.offsets.byteLength, n);
    this.scores = new Float32Array(buffer, this.offsets.byteLength + 4 * n, n);
  }

  /** The words of a query that passages hold, each as often as in the query. */
  knownWords(query) {
    return splitWords(query).filter((word) => this.numbers.has(word));
  }

  /** The best passages: [{row, score}]. Only those that share a word have a score. */
  search(query) {
    const totals = new Float32Array(this.nPassages);
    for (const word of this.knownWords(query)) {
      const number = this.numbers.get(word);
      for (let i = this.offsets[number]; i < this.offsets[number + 1]; i++) totals[this.rows[i]] += this.scores[i];
    }
    return best(totals, 0);
  }
}

/** Vectors with a byte c for each number, which is start + step c in its dimension. */
export class Vectors {
  constructor(buffer, dimension) {
    this.dimension = dimension;
    this.starts = new Float32Array(buffer, 0, dimension);
    this.steps = new Float32Array(buffer, 4 * dimension, dimension);
    this.codes = new Uint8Array(buffer, 8 * dimension);
  }

  /** The passages with the greatest inner products with a query's vector: [{row, score}]. */
  search(vector) {
    let base = 0;
    const weights = new Float64Array(this.dimension);
    vector.forEach((value, d) => { base += value * this.starts[d]; weights[d] = value * this.steps[d]; });
    const totals = new Float64Array(this.codes.length / this.dimension);
    for (let row = 0, i = 0; row < totals.length; row++) {
      let total = base;
      for (let d = 0; d < this.dimension; d++) total += weights[d] * this.codes[i++];
      totals[row] = total;
    }
    return best(totals, -Infinity);
  }
}

/** Reciprocal rank fusion (Cormack et al. 2009): the sum of 1 / (k + rank) over the lists. */
export function fuse(...lists) {
  const totals = new Map();
  for (const list of lists) {
    list.forEach(({ row }, i) => totals.set(row, (totals.get(row) ?? 0) + 1 / (RRF_K + i + 1)));
  }
  return order([...totals].map(([row, score]) => ({ row, score })));
}

/** The rows with the greatest scores, of those above a bound. */
function best(scores, above) {
  const threshold = scores.length > DEPTH ? scores.slice().sort()[scores.length - DEPTH] : -Infinity;
  const found = [];
  scores.forEach((score, row) => { if (score > above && score >= threshold) found.push({ row, score }); });
  return order(found);
}

function order(found) {
  return found.sort((a, b) => b.score - a.score || a.row - b.row).slice(0, DEPTH);
}
