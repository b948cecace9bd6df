// ---- one query, one sharpness, one enlarged head, for all layers -----------------------------------------------------------

const STOPS = Array.from({ length: 25 }, (_, k) => 2 ** (k / 2 - 2));  // 0.25 … 1024
const OWN = STOPS.length;  // each layer as it is stored
const state = {
  at: [0.5, 0.5, 0.5],  // column, row and slice of the query, from 0 at a grid's first input to 1 at its last
  stop: OWN,
  layer: Object.keys(pictures)[0],
  head: 0,
  timer: null,
};
const blocks = [];  // what is drawn anew when the state changes
const byId = (id) => document.getElementById(id);

/** The index of the number nearest to x. */
function nearest(numbers, x) {
  let best = 0;
  numbers.forEach((n, k) => { if (Math.abs(n - x) < Math.abs(numbers[best] - x)) best = k; });
  return best;
}

/** A layer's query at the place that all layers share. */
function queryOf(picture) {
  return picture.queries.map((axis, k) => {
    const [first, last] = picture.inside[k];
    return nearest(axis, first + state.at[picture.shape.length - 1 - k] * (last - first));
  });
}

/** All layers ask from where this query of this layer is. */
function moveTo(picture, query) {
  tokenOfQuery(picture, query).forEach((x, k) => {
    const [first, last] = picture.inside[k];
    state.at[picture.shape.length - 1 - k] = last > first ? (x - first) / (last - first) : 0.5;
  });
  redraw();
}

/** Pointing at a token moves the query to the nearest token that asks. */
function follow(canvas, pictureOf) {
  const move = (event) => {
    const picture = pictureOf(), frame = canvas.getBoundingClientRect();
    const place = tokenOfQuery(picture, queryOf(picture));
    place[place.length - 1] = Math.floor(((event.clientX - frame.left) / frame.width) * picture.shape.at(-1));
    if (place.length > 1) place[place.length - 2] = Math.floor(((event.clientY - frame.top) / frame.height) * picture.shape.at(-2));
    moveTo(picture, place.map((x, axis) => nearest(picture.queries[axis], x)));
  };
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("pointerdown", move);
}

/** Arrow keys, Page Up and Page Down, Home and End move the query by one output of the enlarged head's layer. */
function moveByKey(event, picture = pictures[state.layer]) {
  const query = queryOf(picture);
  const steps = {
    ArrowLeft: [-1, -1], ArrowRight: [-1, 1], ArrowUp: [-2, -1], ArrowDown: [-2, 1], PageUp: [-3, -1], PageDown: [-3, 1],
  };
  if (event.key === "Home") query.fill(0);
  else if (event.key === "End") query.forEach((_, axis) => { query[axis] = picture.asked[axis] - 1; });
  else if (event.key in steps) {
    const [from, step] = steps[event.key], axis = query.length + from;
    if (axis < 0) return;
    query[axis] = Math.max(0, Math.min(picture.asked[axis] - 1, query[axis] + step));
  } else return;
  event.preventDefault();
  moveTo(picture, query);
}

/** Draw once before the next frame, however often something changed. */
let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawAll(); });
}

function drawAll() {
  const colour = colours();
  drawControls();
  drawAnswer();
  drawLarge(colour);
  for (const block of blocks) block(colour);
}

// ---- all heads of all layers -----------------------------------------------------------------------------------------------

function nameOf(picture) {
  return document.querySelector(`#layer-${picture.index} .name`).textContent;
}

function inForce(picture) {
  return picture.factors ? picture.factors[state.stop] : 1;
}

/** A layer's heads in the order of its kernel; one of them is a stop of the tabulator key, arrow keys lead to the others. */
function addHeads(picture, host) {
  const { kernel } = picture, heads = picture.centres.length, dims = picture.shape.length;
  const square = kernel && kernel.length > 1 && size(kernel) === heads;
  const across = dims === 1 ? 1 : Math.min(heads, square ? kernel.at(-1) : heads === 9 ? 3 : 4);
  const grid = element("div", { class: "heads", role: "group", "aria-label": `heads of ${nameOf(picture)}: arrow keys go from one to another` });
  grid.style.setProperty("--across", across);
  const figure = element("figure", { class: across > 4 ? "block wide" : dims === 1 ? "block flat" : "block", "data-layer": picture.index });
  figure.style.setProperty("--across", across);
  const cards = picture.centres.map((_, head) => {
    const canvas = element("canvas", { "aria-hidden": "true" });
    const card = element("button", { type: "button", class: "head", "data-head": head, tabindex: head ? -1 : 0 }, canvas);
    const choose = () => {
      Object.assign(state, { layer: picture.index, head });
      placePanel(card);
      redraw();
    };
    card.addEventListener("click", choose);
    card.addEventListener("focus", choose);
    follow(canvas, () => picture);
    return { card, canvas };
  });
  cards.forEach(({ card }, at) => card.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across };
    const to = { Home: 0, End: heads - 1 }[event.key] ?? at + (steps[event.key] ?? NaN);
    if (Number.isNaN(to)) return;
    event.preventDefault();
    cards[to]?.card.focus();
  }));
  grid.append(...cards.map(({ card }) => card));
  const hidden = picture.heads - heads;
  const caption = element("figcaption", {}, element("b", {}, nameOf(picture)));
  const words = element("span", { class: "says" });
  caption.append(`${heads} head${heads > 1 ? "s" : ""}${hidden ? ` of ${picture.heads}` : ""}, ${picture.input.join(" × ")}${picture.crop ? " crop" : ""}`, element("br"), words);
  figure.append(grid, caption);
  host.append(figure);
  blocks.push((colour) => {
    const query = queryOf(picture);
    cards.forEach(({ card, canvas }, head) => {
      const map = probabilities(picture, head, query, inForce(picture)), best = argmax(map);
      drawAttention(canvas, canvas.clientWidth, colour, picture, map, query);
      const chosen = state.layer === picture.index && state.head === head;
      card.classList.toggle("chosen", chosen);
      card.setAttribute("aria-pressed", chosen);
      card.setAttribute("aria-label", `head ${head}: ${percent(map[best], picture.bits)} on ${describe(picture, best)}`);
      if (state.layer === picture.index) card.tabIndex = chosen ? 0 : -1;
    });
    words.textContent = picture.live ? `outputs ${apart(outputs(picture, state.stop).greatest)}` : "";
  });
}

const narrow = matchMedia("(max-width: 60rem)");

/** The enlarged head stands beside all layers' heads; elsewhere below the row of its own head, which stays where it was pressed. */
function placePanel(card) {
  const panel = byId("panel"), stage = byId("stage"), grid = card.parentElement;
  if (!narrow.matches && stage.contains(card)) {
    if (panel.parentElement !== stage) stage.prepend(panel);
    return;
  }
  const across = Number(grid.style.getPropertyValue("--across")), cards = [...grid.querySelectorAll(".head")];
  const row = Math.floor(cards.indexOf(card) / across), last = cards[Math.min((row + 1) * across, cards.length) - 1];
  const before = card.getBoundingClientRect().top;
  if (last.nextSibling === panel) return;
  last.after(panel);
  scrollBy(0, card.getBoundingClientRect().top - before);
  drawAll();
  panel.scrollIntoView({ block: "nearest" });
}

/** A difference that only rounding explains is said to be 0 up to rounding. */
function apart(greatest) {
  return greatest === 0 ? "equal" : `${short(greatest)} apart`;
}

/** The chosen head in large, and in words: the query, and where the head looks. */
function drawLarge(colour) {
  const picture = pictures[state.layer], { head } = state, query = queryOf(picture);
  const map = probabilities(picture, head, query, inForce(picture)), best = argmax(map), canvas = byId("large");
  canvas.parentElement.classList.toggle("flat", picture.shape.length === 1);
  const slice = drawAttention(canvas, canvas.clientWidth, colour, picture, map, query);
  byId("large-name").textContent = `${nameOf(picture)}, head ${head}${picture.shape.length === 3 ? `, slice ${slice}` : ""}`;
  const moved = picture.maps && picture.centres[head] === null, carried = picture.carried[head];
  const tap = moved && picture.shifts ? tapAt(picture, query, best) : picture.taps[head];
  let said = `The query is output ${vector(query)}. Head ${head} puts ${percent(map[best], picture.bits)} of its attention on ${describe(picture, best)}`;
  const matrix = `carries a matrix of norm ${short(carried ?? 0)}`;
  if (moved && picture.shifts) {
    said += tap === null ? ", which no tap of the kernel reads from here" : `, which tap ${vector(placeOf(picture.kernel, tap))} reads from here`;
    said += `. Where it looks depends on the image; it ${matrix}`;
  } else if (tap !== null) said += `, and multiplies it by tap ${vector(placeOf(picture.kernel, tap))} of the kernel, of norm ${short(carried)}`;
  else if (carried !== null && moved) said += `. Where it looks depends on the image; it ${matrix}`;
  else if (carried !== null && picture.kernel) said += picture.centres[head] === null ? `; it looks at no single key, and ${matrix}` : `; it looks at no tap of the kernel, and ${matrix}`;
  byId("readout").textContent = `${said}.`;
  const part = picture.crop || (picture.image ? "the whole input" : "no input to draw"), of = picture.image ? `; ${picture.image.of}` : "";
  byId("large-note").textContent = `${picture.input.join(" × ")} positions, ${part}${of}. ${picture.caption ?? ""}`;
}

// ---- both layers at work ---------------------------------------------------------------------------------------------------

/** Input, both outputs, their difference and the leakage of one layer, at the slider's sharpness. */
function addOutputs(host) {
  const picture = pictures[host.dataset.layer], { live, image } = picture, details = host.closest("details");
  const figures = {};
  for (const name of live ? ["input", "convolution", "attention", "difference"] : []) {
    const canvas = element("canvas", { role: "img" }), scale = element("span");
    const title = { input: "Input", convolution: "Convolution", attention: "Attention", difference: "Difference" }[name];
    figures[name] = { canvas, scale };
    host.append(element("figure", { class: picture.shape.length === 1 ? "flat" : "" }, canvas, element("figcaption", {}, element("b", {}, title), scale)));
  }
  const leak = element("figcaption", { class: "leak" }), chart = svg("svg", { class: "chart", viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img" });
  if (picture.bound_of) host.append(element("figure", { class: "leakage" }, chart, leak));
  const draw = (colour) => {
    if (details?.open === false) return;
    const query = queryOf(picture);
    if (live) {
      const { output, difference, greatest } = outputs(picture, state.stop), { convolution } = live;
      const low = Math.min(...convolution), high = Math.max(...convolution), range = high - low || 1;
      const shades = Uint8Array.from(atob(image.bytes), (letter) => letter.charCodeAt(0));
      const grey = (values) => (k) => mix(colour.dark, colour.light, (values[k] - low) / range);
      const signed = (k) => mix(colour.paper, difference[k] > 0 ? colour.heat : colour.cold, Math.sqrt(Math.abs(difference[k]) / range));  // little is seen too
      const asked = picture.asked.join(" × "), of = `channel ${live.channel} of ${live.of}`;
      const planes = {
        input: [picture.input, (k) => mix(colour.dark, colour.light, shades[k] / 255), `${picture.input.join(" × ")}, ${image.of}: ${between(image.low, image.high)}`],
        convolution: [picture.asked, grey(convolution), `${asked}, ${of}: ${between(low, high)}`],
        attention: [picture.asked, grey(output), `${asked}, on the same scale`],
        difference: [picture.asked, signed, `${greatest === 0 ? "exactly 0" : `at most ${short(greatest)}`}; full colour at ±${short(range)}, by the square root`],
      };
      for (const [name, [shape, colourOf, text]] of Object.entries(planes)) {
        const { canvas, scale } = figures[name];
        drawPlane(canvas, canvas.clientWidth, colour, shape, colourOf, name === "input" && details ? null : query);
        scale.textContent = text;
        canvas.setAttribute("aria-label", `${name}, ${text}`);
      }
    }
    if (picture.bound_of) drawLeakage(picture, query, chart, leak);
  };
  blocks.push(draw);
  details?.addEventListener("toggle", redraw);
  return figures;
}

function between(low, high) {
  return [low, high].map((x) => String(Number(x.toPrecision(3))).replace("-", "−")).join(" … ");
}

function drawLeakage(picture, query, chart, leak) {
  const name = query.join();
  if (picture.worstFor !== name) Object.assign(picture, { worst: worstLeakage(picture, query), worstFor: name });
  const { measured, bound } = picture.worst[state.stop];
  chart.classList.toggle("empty", measured === null);
  let text = "No head looks at a single key of the grid from here, so there is no leakage to speak of.";
  if (measured !== null) {
    const zero = measured === 0 ? " (below 5e−324)" : "";
    text = `The share of attention that misses a head’s tap, of the worst head at this query: ${short(measured)}${zero}`;
    if (Math.fround(measured) === 0) text += ", exactly 0 in float32";
    text += bound === null ? "; no bound was worked out." : `. Bound on any grid (dashed): ${shortAbove(bound)}.`;
    leak.title = `measured ${measured}` + (bound === null ? "" : `, bound ${bound}`);
    drawChart(chart, picture, picture.worst, state.stop);
  }
  const off = picture.centres.filter((_, head) => centreKey(picture, head, query) === null).length;
  if (off && measured !== null) text += ` ${off === 1 ? "1 head looks" : `${off} heads look`} at no single key of this grid.`;
  leak.textContent = text;
  chart.setAttribute("aria-label", `leakage against sharpness. ${text}`);
}

// ---- the slider, and its play button ---------------------------------------------------------------------------------------

const slider = byId("sharpness"), play = byId("play");
const sharpened = Object.values(pictures).filter((picture) => picture.factors);
const stillness = matchMedia("(prefers-reduced-motion: reduce)");

/** Whether every layer is as it is stored. */
function isOwn() {
  return sharpened.every((picture) => inForce(picture) === 1);
}

function drawControls() {
  const alphas = [...new Set(sharpened.map((picture) => picture.alpha))];
  const own = alphas.length === 1 && alphas[0] !== null ? `α = ${Number(alphas[0].toPrecision(4))}` : "each layer’s own α";
  const name = state.stop === OWN ? own : `α = ${Number(STOPS[state.stop].toPrecision(4))}`;
  if (state.stop === OWN) slider.value = nearest(STOPS.map(Math.log2), Math.log2(alphas[0] ?? 1024));
  slider.setAttribute("aria-valuetext", name);
  byId("alpha").textContent = name;
  byId("softened").textContent = isOwn()
    ? "Every layer as it is stored."
    : "Not as stored: verdicts, tables and torch’s pictures are of the stored layers.";
}

// ---- what the network answers ----------------------------------------------------------------------------------------------

const scoreList = byId("scores");  // of a network with few classes: the torch layers' own scores at every stop
const [convolutionScores, ...stopScores] = scoreList ? JSON.parse(scoreList.dataset.scores) : [];

/** Class scores, or how far layers are from their convolutions on what is drawn of their inputs. */
function drawAnswer() {
  if (scoreList) return drawScores();
  const live = sharpened.filter((picture) => picture.live);
  if (!live.length) return;
  const worst = live.reduce((a, b) => (outputs(a, state.stop).greatest >= outputs(b, state.stop).greatest ? a : b));
  const { greatest } = outputs(worst, state.stop), where = live.some((picture) => picture.crop) ? "On the crops drawn" : "On the inputs drawn";
  byId("answer").textContent = greatest === 0
    ? `${where} attention gives exactly what the convolutions give.`
    : `${where} attention’s outputs are at most ${short(greatest)} from the convolutions’${live.length > 1 ? ` (in layer ${nameOf(worst)})` : ""}.`;
}

function drawScores() {
  const scores = stopScores[state.stop], all = stopScores.flat(), low = Math.min(...all), range = Math.max(...all) - low || 1;
  if (!scoreList.children.length) scoreList.append(...scores.map(() => element("li", {}, element("span"), element("b"))));
  scores.forEach((score, k) => {
    const item = scoreList.children[k], [number, name] = item.children;
    [number.textContent, name.textContent] = [score.toFixed(1).replace("-", "−"), k];
    item.style.setProperty("--score", (score - low) / range);
    item.style.setProperty("--convolution", (convolutionScores[k] - low) / range);
  });
  const [answer, before] = [argmax(scores), argmax(convolutionScores)];
  const difference = Math.max(...scores.map((score, k) => Math.abs(score - convolutionScores[k])));
  byId("answer").replaceChildren("The network answers ", element("b", {}, answer), answer === before ? ", as with convolutions" : `; with convolutions ${before}`,
    ` (lines); scores ${difference === 0 ? "are equal" : `differ by at most ${short(difference)}`}.`);
}

function setStop(stop) {
  state.stop = stop;
  if (stop !== OWN) slider.value = stop;
  redraw();
}

function stopPlaying() {
  clearInterval(state.timer);
  state.timer = null;
  play.textContent = "Play";
  byId("readout").setAttribute("aria-live", "polite");
}

/** From the softest stop to the sharpest; in few steps for a reader who wants little motion. */
function startPlaying() {
  const [step, pause] = stillness.matches ? [6, 1500] : [1, 280];
  setStop(0);
  play.textContent = "Pause";
  byId("readout").setAttribute("aria-live", "off");
  state.timer = setInterval(() => {
    setStop(Math.min(state.stop + step, STOPS.length - 1));
    if (state.stop === STOPS.length - 1) stopPlaying();
  }, pause);
}

slider.addEventListener("input", () => { stopPlaying(); setStop(Number(slider.value)); });
byId("own").addEventListener("click", () => { stopPlaying(); setStop(OWN); });
play.addEventListener("click", () => { if (state.timer === null) startPlaying(); else stopPlaying(); });

// ---- the page --------------------------------------------------------------------------------------------------------------

if (Object.keys(pictures).length) {
  byId("stage").hidden = false;
  byId("controls").hidden = !sharpened.length;
  byId("large").addEventListener("keydown", (event) => moveByKey(event));
  follow(byId("large"), () => pictures[state.layer]);
  for (const picture of Object.values(pictures)) addHeads(picture, byId("overview"));
  for (const host of document.querySelectorAll(".layer .outputs")) addOutputs(host);
  narrow.addEventListener("change", () => placePanel(document.querySelector(".head.chosen")));
  new ResizeObserver(redraw).observe(byId("stage"));
  drawAll();
}

const theme = byId("theme");
const system = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
}

function themed() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", `switch to the ${isDark() ? "light" : "dark"} theme`);
  if (Object.keys(pictures).length) redraw();
}

theme.hidden = false;
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  themed();
});
system.addEventListener("change", themed);
themed();
