// Ranks passages as the Python package does: BM25, int8 vectors, reciprocal rank fusion.
//
// Passages are stored in the order of their ids, and of two equal scores the lower row is first.
// So ties are broken by id, as in Python.

const DEPTH = 100; // passages of each list that are fused
const RRF_K = 60;
const WORD = /[\p{L}\p{N}_]{2,}/gu; // Python's \b\w\w+\b

/** The words of a text: [{word, start, end}], in lower case. */
export function findWords(text) {
  return [...text.matchAll(WORD)].map(({ 0: word, index }) => ({
    word: word.toLowerCase(), start: index, end: index + word.length,
  }));
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
    return findWords(query.toLowerCase()).map(({ word }) => word).filter((word) => this.numbers.has(word));
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
