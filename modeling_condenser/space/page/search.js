// The page: loads data and encoder, searches, and shows the results.
// Texts of passages are inserted as text, never as HTML.

import { Bm25, Vectors, fuse, markWords } from "./ranking.js";

const SHOWN = 10; // results in a column
const $ = (id) => document.getElementById(id);
const read = async (file, how) => {
  const answer = await fetch(file);
  if (!answer.ok) throw new Error(`${file}: ${answer.status}`);
  return answer[how]();
};

let page; // settings, passages, bm25 and vectors
let encoder; // a promise of a function from query to vector
let latest = 0; // number of the newest search

async function load() {
  const [settings, passages, words, index, codes] = await Promise.all([
    read("space.json", "json"), read("data/passages.json", "json"), read("data/words.json", "json"),
    read("data/bm25.bin", "arrayBuffer"), read("data/vectors.bin", "arrayBuffer"),
  ]);
  const bm25 = new Bm25(words, index, passages.ids.length);
  page = { settings, passages, bm25, vectors: new Vectors(codes, settings.dimension) };
  $("title").textContent = document.title = settings.title;
  $("about").textContent = settings.about;
  $("query").placeholder = settings.examples[0]?.query ?? "";
  for (const { query } of settings.examples) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = query;
    button.addEventListener("click", () => { $("query").value = query; search(query); });
    $("examples").append(button);
  }
  encoder = import("./encoder.js").then(({ loadEncoder }) =>
    loadEncoder(settings, (percent) => { $("progress").value = percent; }));
  encoder.then(() => say("Ready."), (error) => say(noEncoder(error)))
    .finally(() => { $("progress").hidden = true; });
  say("Loading the encoder; lexical search is ready …");
}

async function search(query) {
  const number = ++latest;
  const { bm25, vectors, settings } = page;
  const isCurrent = () => number === latest;
  const words = new Set(bm25.knownWords(query));
  const relevant = settings.examples.find((example) => example.query === query)?.relevant ?? [];
  const show = (id, found) => $(id).replaceChildren(
    ...found.slice(0, SHOWN).map(({ row, score }, i) => item(i + 1, row, score, words, relevant)));
  const lexical = bm25.search(query);
  show("lexical", lexical);
  show("dense", []);
  show("hybrid", []);
  say("Encoding the query …");
  try {
    const encode = await encoder;
    const started = performance.now();
    const vector = await encode(query);
    const encoded = performance.now();
    const dense = vectors.search(vector);
    const hybrid = fuse(lexical, dense);
    if (!isCurrent()) return;
    show("dense", dense);
    show("hybrid", hybrid);
    const times = [encoded - started, performance.now() - encoded].map((ms) => ms.toFixed(0));
    say(`Results for “${query}”: encoded in ${times[0]} ms, ranked in ${times[1]} ms.`
      + (lexical.length ? "" : " No passage has a word of the query."));
  } catch (error) {
    if (isCurrent()) say(noEncoder(error));
  }
}

/** A result: rank, title, and the text, which opens on a click. */
function item(rank, row, score, words, relevant) {
  const { ids, titles, texts } = page.passages;
  const element = (name, className, ...content) => {
    const made = document.createElement(name);
    made.className = className;
    made.append(...content);
    return made;
  };
  const title = element("h3", "", element("span", "rank", `${rank}. `), ...highlight(titles[row] || ids[row], words));
  const parts = [title, element("p", "text", ...highlight(texts[row], words))];
  if (relevant.includes(ids[row])) parts.push(element("span", "judged", "✓ judged relevant"));
  const made = element("li", "", element("details", "", element("summary", "", ...parts)));
  made.dataset.id = ids[row];
  made.title = `${ids[row]}, score ${score.toPrecision(4)}`;
  return made;
}

/** A text as nodes, with the given words marked. */
function highlight(text, words) {
  return markWords(text, words).map(([part, isWord]) => {
    if (!isWord) return part;
    const mark = document.createElement("mark");
    mark.textContent = part;
    return mark;
  });
}

const say = (text) => { $("status").textContent = text; };
const noEncoder = (error) => "The encoder cannot run in this browser, so only lexical search works"
  + ` (${error?.message ?? error}). It needs WebAssembly with SIMD: try a current browser.`;

$("views").addEventListener("change", ({ target }) => { $("columns").dataset.view = target.value; });
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const query = $("query").value.trim();
  if (query) ready.then(() => search(query));
});
const ready = load();
ready.catch((error) => say(`The page's data cannot be loaded: ${error.message}`));
