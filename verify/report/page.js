"use strict";

// The attention of each layer, worked out live.
//
// A head's score for the key k at the query q is c·r(k − q), with c = Ŵ_keyᵀ v read from the layer's own weights and r its
// encoding; softmax over all keys gives what it attends to.  Nothing here knows the kernel or where a head "should" look.

const pictures = JSON.parse(document.getElementById("data").textContent);
for (const [index, picture] of Object.entries(pictures)) {
  picture.index = index;
  const tokens = picture.shape.reduce((product, n) => product * n, 1);
  picture.places = Array.from({ length: tokens }, (_, key) => placeOf(picture.shape, key));
  picture.kinds = picture.places.map((place) => kindOf(picture, place));
}

// ---- Eq. 6 and its softmax -----------------------------------------------------------------------------------------------

/** r of a shift: (‖δ‖², δ); or (n², n) with n the shift's number in mixed radix, for the parabola. */
function encoded(delta, radix) {
  const parts = radix === null ? delta : [delta.reduce((sum, x, axis) => sum + radix[axis] * x, 0)];
  let square = 0;
  for (const x of parts) square += x * x;
  return [square, ...parts];
}

/** The place on the grid of the token with this number, row by row. */
function placeOf(shape, number) {
  const place = [];
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    place.unshift(number % shape[axis]);
    number = Math.floor(number / shape[axis]);
  }
  return place;
}

function numberOf(shape, place) {
  return place.reduce((number, x, axis) => number * shape[axis] + x, 0);
}

/** Softmax of the scores times a factor: the slider's sharpness over the layer's own. */
function softmax(scores, factor) {
  let most = -Infinity, total = 0;
  for (const score of scores) most = Math.max(most, factor * score);
  const weights = new Float64Array(scores.length);
  for (let k = 0; k < scores.length; k++) total += weights[k] = Math.exp(factor * scores[k] - most);
  for (let k = 0; k < scores.length; k++) weights[k] /= total;
  return weights;
}

/** The token that asks for an output: one index an axis → its place on the padded grid. */
function tokenOfQuery(picture, query) {
  return query.map((index, axis) => picture.queries[axis][index]);
}

/** r of the shift to every key; all heads share it, so that of the last query is kept. */
function encodings(picture, query) {
  const name = query.join();
  if (picture.encodedFor !== name) {
    const from = tokenOfQuery(picture, query);
    picture.encodings = picture.places.map((place) => encoded(place.map((x, axis) => x - from[axis]), picture.radix));
    picture.encodedFor = name;
  }
  return picture.encodings;
}

/** A head's score of every key, c·r, as the layer's own α has it. */
function scoresOf(picture, head, query) {
  const c = picture.c[head];
  return Float64Array.from(encodings(picture, query), (r) => {
    let score = 0;
    for (let p = 0; p < c.length; p++) score += c[p] * r[p];
    return score;
  });
}

/** What a head attends to: one probability a token, for scores that are multiplied by a factor (the slider). */
function probabilities(picture, head, query, factor = 1) {
  if (picture.maps) return storedProbabilities(picture, head, query);
  return softmax(scoresOf(picture, head, query), factor);
}

/** Attention that depends on the image comes as probabilities in 16 bits, or the root of each in 8. */
function storedProbabilities(picture, head, query) {
  if (!picture.stored) {
    const bytes = Uint8Array.from(atob(picture.maps), (letter) => letter.charCodeAt(0));
    picture.stored = picture.bits === 16 ? new Uint16Array(bytes.buffer) : bytes;
  }
  const asked = picture.queries.map((axis) => axis.length);
  const keys = picture.shape.reduce((product, n) => product * n, 1);
  const queries = asked.reduce((product, n) => product * n, 1);
  const start = (head * queries + numberOf(asked, query)) * keys;
  return Float64Array.from(picture.stored.subarray(start, start + keys), picture.bits === 16 ? (x) => x / 65535 : (x) => (x / 255) ** 2);
}

function argmax(values) {
  let best = 0;
  for (let k = 1; k < values.length; k++) if (values[k] > values[best]) best = k;
  return best;
}

/** The key that a head's own v looks at from this query, or null if there is none on the grid. */
function centreKey(picture, head, query) {
  const centre = picture.centres[head];
  if (centre === null) return null;
  const place = tokenOfQuery(picture, query).map((x, axis) => x + centre.shift[axis]);
  return place.every((x, axis) => x >= 0 && x < picture.shape[axis]) ? numberOf(picture.shape, place) : null;
}

/** The tap that meets this key from this query, or null: for heads whose place depends on the image. */
function tapAt(picture, query, key) {
  const from = tokenOfQuery(picture, query);
  const shift = placeOf(picture.shape, key).map((x, axis) => x - from[axis]).join();
  const tap = picture.shifts.findIndex((one) => one.join() === shift);
  return tap < 0 ? null : tap;
}

/** How much of a head's attention goes elsewhere, at every stop of the slider; null if it looks at no single key of the grid. */
function leakage(picture, head, query) {
  const target = centreKey(picture, head, query);
  if (target === null) return null;
  const scores = scoresOf(picture, head, query);
  return picture.factors.map((factor) => {
    const weights = softmax(scores, factor);
    let leaked = 0;
    for (let key = 0; key < weights.length; key++) if (key !== target) leaked += weights[key];
    return leaked;
  });
}

/** At every stop of the slider: the greatest leakage of any head from this query, and the greatest bound. */
function worstLeakage(picture, query) {
  const leaked = picture.centres.map((_, head) => leakage(picture, head, query)).filter((row) => row !== null);
  const bounds = picture.bound_of.map((row) => (row === null ? null : picture.bounds[row]));
  const known = bounds.filter((row) => row !== null);
  return picture.factors.map((_, stop) => ({
    measured: leaked.length ? Math.max(...leaked.map((row) => row[stop])) : null,
    // A bound is only one if it covers every head that was measured.
    bound: known.length && known.length >= leaked.length ? Math.max(...known.map((row) => row[stop])) : null,
  }));
}

// ---- what a token is -----------------------------------------------------------------------------------------------------

function isPadding(picture, place) {
  return place.some((x, axis) => x < picture.inside[axis][0] || x > picture.inside[axis][1]);
}

/** "input" for a real pixel; else "zero" for a token of zeros, "copy" for padding that copies a pixel. */
function kindOf(picture, place) {
  if (place.some((x, axis) => picture.sources[axis][x] < 0)) return "zero";
  return isPadding(picture, place) ? "copy" : "input";
}

function describe(picture, key) {
  const place = placeOf(picture.shape, key);
  const source = `(${place.map((x, axis) => picture.sources[axis][x]).join(", ")})`;
  const zeros = isPadding(picture, place) ? "a padding token of zeros" : "a token of zeros between two inputs";
  const what = { input: `input ${source}`, copy: `padding, a copy of input ${source}`, zero: zeros };
  return `token (${place.join(", ")}), ${what[kindOf(picture, place)]}`;
}

function vector(numbers) {
  return `(${numbers.map((x) => String(x).replace("-", "−")).join(", ")})`;
}

/** Two digits. */
function short(x) {
  return x === 0 ? "0" : x >= 0.001 ? Number(x.toPrecision(2)).toString() : x.toExponential(1).replace("-", "−");
}

/** Two digits of a bound, never below it. */
function shortAbove(x) {
  if (x > 0 && x < 1e-300) return "1e−300";
  if (x === 0) return "0";
  let text = x.toPrecision(2);
  if (Number(text) < x) text = (x + 10 ** (Math.floor(Math.log10(x)) - 1)).toPrecision(2);
  return short(Number(text));
}

/** A share in percent that says 100 only where everything else is exactly zero; of 8 bits, no more than they know. */
function percent(p, bits = 64) {
  if (bits === 8) return `about ${Math.round(100 * p)} %`;
  if (p === 1) return "100 %";
  return p > 0.999 ? "> 99.9 %" : `${(100 * p).toPrecision(p < 0.1 ? 2 : 3)} %`;
}

// ---- drawing -------------------------------------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const found = {};
  for (const name of ["accent", "token", "pad", "hatch", "query", "paper"]) found[name] = style.getPropertyValue(`--${name}`).trim();
  return found;
}

/** "#rrggbb" as three numbers. */
function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

/** Black or white, whichever is seen better on a colour: one of them has a contrast of 4.5 on any. */
function inkOn(colour) {
  const linear = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return luminance > 0.179 ? "#000" : "#fff";
}

/** Rows, columns and side of a cell, in device pixels, of one slice of the grid. */
function layout(picture, width) {
  const columns = picture.shape.at(-1);
  const rows = picture.shape.length > 1 ? picture.shape.at(-2) : 1;
  const cell = Math.max(3, Math.floor((2 * width) / columns));
  const height = rows === 1 ? Math.min(Math.max(cell, 36), 72) : cell;
  return { rows, columns, cell, height };
}

/** One token: filled for a pixel of the input, empty with one stroke for zeros, with two strokes for a copy. */
function drawToken(pen, kind, x, y, width, height, colour) {
  pen.fillStyle = kind === "input" ? colour.token : colour.pad;
  pen.fillRect(x, y, width, height);
  if (kind === "input") return;
  pen.strokeStyle = colour.hatch;
  pen.lineWidth = 1.5;
  pen.strokeRect(x + 0.75, y + 0.75, width - 1.5, height - 1.5);
  pen.beginPath();
  pen.moveTo(x, y + height);
  pen.lineTo(x + width, y);
  if (kind === "copy") {
    pen.moveTo(x, y);
    pen.lineTo(x + width, y + height);
  }
  pen.stroke();
}

const bases = new Map();

/** The grid without attention.  It is the same for all heads and queries, so each is drawn once. */
function baseGrid(box, colour, picture, slice, dots) {
  const kinds = picture.kinds.slice(slice * box.rows * box.columns, (slice + 1) * box.rows * box.columns);
  const name = [picture.index, slice, dots, box.cell, box.height, colour.token, colour.pad].join();
  if (bases.has(name)) return bases.get(name);
  if (bases.size > 200) bases.clear();
  const canvas = element("canvas", { width: box.columns * box.cell, height: box.rows * box.height });
  const pen = canvas.getContext("2d");
  kinds.forEach((kind, number) => {
    const place = placeOf([box.rows, box.columns], number);
    const [x, y] = [place[1] * box.cell, place[0] * box.height];
    drawToken(pen, kind, x, y, box.cell - box.gap, box.height - box.gap, colour);
    const asks = [slice, ...place].slice(3 - picture.shape.length).every((n, axis) => picture.queries[axis].includes(n));
    if (!dots || !asks) return;
    pen.fillStyle = colour.query;
    pen.globalAlpha = 0.35;
    pen.beginPath();
    pen.arc(x + (box.cell - box.gap) / 2, y + (box.height - box.gap) / 2, Math.max(1.5, Math.min(box.cell, box.height) / 14), 0, 7);
    pen.fill();
    pen.globalAlpha = 1;
  });
  bases.set(name, canvas);
  return canvas;
}

const LEAST_MARK = 9;  // device pixels of what has to be found: the query, and what a head looks at

/** The grid with attention over it: the shade is the square root of the probability, so that little is seen too. */
function drawGrid(canvas, width, colour, picture, attention, query, slice, dots) {
  const box = layout(picture, width || 120);
  box.gap = box.cell > 10 ? 2 : 1;
  const base = baseGrid(box, colour, picture, slice, dots);
  if (canvas.width !== base.width || canvas.height !== base.height) [canvas.width, canvas.height] = [base.width, base.height];
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(base, 0, 0);
  const cells = box.rows * box.columns;
  pen.fillStyle = colour.accent;
  for (let number = 0; number < cells; number++) {
    const p = attention[slice * cells + number];
    if (!(p > 1e-6)) continue;  // a shade of less than a thousandth
    const [row, column] = [Math.floor(number / box.columns), number % box.columns];
    // A token of a few pixels that gets much is drawn larger than it is.
    const more = p > 0.2 ? Math.max(0, LEAST_MARK - box.cell) / 2 : 0;
    pen.globalAlpha = Math.sqrt(Math.min(1, p));
    pen.fillRect(column * box.cell - more, row * box.height - more, box.cell - box.gap + 2 * more, box.height - box.gap + 2 * more);
  }
  pen.globalAlpha = 1;
  const from = tokenOfQuery(picture, query);
  if (from.length < 3 || from[0] === slice) {
    const more = Math.max(0, LEAST_MARK + 3 - box.cell) / 2;
    const [left, top] = [from.at(-1) * box.cell - more, (from.length > 1 ? from.at(-2) * box.height : 0) - more];
    const [across, down] = [box.cell - box.gap + 2 * more, box.height - box.gap + 2 * more];
    const thick = Math.max(2, Math.min(box.cell, box.height) / 10);
    for (const [ring, inset] of [[colour.query, thick / 2], [colour.paper, 1.5 * thick]]) {  // seen on any shade
      pen.strokeStyle = ring;
      pen.lineWidth = thick;
      pen.strokeRect(left + inset, top + inset, across - 2 * inset, down - 2 * inset);
    }
  }
}

/** The kernel in small, the tap that a head carries marked. */
function drawMark(canvas, colour, kernel, tap) {
  const columns = kernel.shape.at(-1), rows = kernel.norms.length / columns;
  const cell = Math.max(2, Math.min(14, Math.floor(60 / Math.max(rows, columns))));
  canvas.width = columns * cell;
  canvas.height = rows * cell;
  canvas.style.width = `${canvas.width / 2}px`;
  canvas.style.height = `${canvas.height / 2}px`;
  const pen = canvas.getContext("2d");
  kernel.norms.forEach((_, j) => {
    pen.fillStyle = j === tap ? colour.accent : colour.token;
    pen.fillRect((j % columns) * cell, Math.floor(j / columns) * cell, cell - 1, cell - 1);
  });
}

const CHART = { width: 300, height: 150, left: 48, bottom: 24, top: 8, right: 8, floor: -20 };

/** Leakage against sharpness, both on logarithmic axes; what is below 1e−20 is drawn at the bottom. */
function drawChart(chart, picture, worst, stop) {
  const { width, height, left, bottom, top, right, floor } = CHART;
  const across = (k) => left + ((width - left - right) * k) / Math.max(1, picture.factors.length - 1);
  const up = (value) => {
    const power = value > 0 ? Math.max(floor, Math.log10(value)) : floor;
    return top + (height - top - bottom) * (power / floor);
  };
  const line = (values) => values.map((value, k) => (value === null ? "" : `${across(k)},${up(value)}`)).join(" ").trim();
  const parts = [];
  for (const power of [0, -10, -20]) {
    parts.push(svg("line", { class: "axis", x1: left, x2: width - right, y1: up(10 ** power), y2: up(10 ** power) }));
    const text = svg("text", { x: left - 6, y: up(10 ** power) + 4, "text-anchor": "end" });
    text.textContent = power === 0 ? "1" : `1e${String(power).replace("-", "−")}`;
    parts.push(text);
  }
  for (const [k, anchor] of [[0, "start"], [picture.factors.length - 1, "end"]]) {
    const text = svg("text", { x: across(k), y: height - 5, "text-anchor": anchor });
    text.textContent = stopName(picture, k);
    parts.push(text);
  }
  parts.push(svg("polyline", { class: "measured", points: line(worst.map((w) => w.measured)) }));
  if (worst.every((w) => w.bound !== null)) parts.push(svg("polyline", { class: "bound", points: line(worst.map((w) => w.bound)) }));
  const here = worst[stop].measured;
  if (here !== null) parts.push(svg("circle", { class: "here", cx: across(stop), cy: up(here), r: 5 }));
  chart.replaceChildren(...parts);
}

/** What the slider says at one of its stops. */
function stopName(picture, stop) {
  if (picture.alpha === null) return `scores × ${short(picture.factors[stop])}`;
  return `α = ${Number((picture.alpha * picture.factors[stop]).toPrecision(4))}`;
}

// ---- one picture: its controls and their state ---------------------------------------------------------------------------

class AttentionPicture {
  constructor(host, picture) {
    this.picture = picture;
    this.heads = picture.centres.length;
    this.dims = picture.shape.length;
    this.query = picture.queries.map((axis) => Math.floor(axis.length / 2));
    this.stop = picture.own ?? 0;
    this.chosen = 0;
    this.tapStop = 0; // which tap the tabulator key comes to
    this.slice = null; // of three dimensions; null: the one where each head looks
    host.classList.toggle("row", this.dims === 1);
    host.append(this.panel(), this.cards());
    this.worstAt = new Map();
    this.waiting = false;
    new ResizeObserver(() => this.redraw()).observe(host);
    this.redraw();
  }

  panel() {
    this.main = element("canvas", { class: "query", tabindex: "0", role: "application", "aria-roledescription": "query picker" });
    this.main.addEventListener("keydown", (event) => this.key(event));
    this.follow(this.main, () => this.chosen);
    const keys = this.dims === 3 ? "arrow keys, Page Up and Page Down" : "arrow keys";
    const caption = element("figcaption", {},
      `All heads together. Point at a pixel, or use the ${keys}, to move the query (outlined; a dot marks every token that asks).`);
    this.readout = element("p", { class: "readout", "aria-live": "polite" });
    const panel = element("div", { class: "panel" }, element("figure", {}, this.main, caption));
    if (this.dims === 3) panel.append(this.sliceSelector());
    panel.append(this.readout);
    if (this.picture.caption) panel.append(element("p", { class: "small soft" }, this.picture.caption));
    if (this.picture.factors) panel.append(...this.sharpness());
    return panel;
  }

  sliceSelector() {
    this.slices = element("select");
    this.slices.append(element("option", { value: "" }, "where each head looks"));
    for (let z = 0; z < this.picture.shape[0]; z++) this.slices.append(element("option", { value: z }, `slice ${z}`));
    this.slices.addEventListener("change", () => {
      this.slice = this.slices.value === "" ? null : Number(this.slices.value);
      this.redraw();
    });
    return element("label", { class: "small" }, "Slice shown: ", this.slices);
  }

  sharpness() {
    const { factors, own } = this.picture;
    this.slider = element("input", { type: "range", min: 0, max: factors.length - 1, step: 1, value: own, "aria-label": "sharpness" });
    this.slider.addEventListener("input", () => { this.stop = Number(this.slider.value); this.redraw(); });
    this.sharp = element("output");
    const reset = element("button", { type: "button" }, "The layer’s own");
    reset.addEventListener("click", () => { this.slider.value = this.stop = own; this.redraw(); });
    this.leak = element("p", { class: "leak" });
    this.chart = svg("svg", { class: "chart", viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": "leakage against sharpness" });
    const caption = element("figcaption", {}, "Attention that leaks past the target key, from this query (line), and its bound (dashed), as the heads sharpen.");
    return [
      element("div", { class: "sharpness" }, element("span", {}, "Sharpness ", this.sharp), reset, this.slider),
      element("div", {}, this.leak, element("figure", {}, this.chart, caption)),
    ];
  }

  /** The kernel as a heat map; every tap is a button that picks the heads which look there, one after the other. */
  kernel() {
    const { kernel } = this.picture;
    const columns = kernel.shape.at(-1);
    const slices = kernel.shape.length === 3 ? kernel.shape[0] : 1;
    const holder = element("div", { role: "group", "aria-label": "the kernel: arrow keys move from tap to tap" });
    this.tapButtons = kernel.norms.map((_, j) => {
      const button = element("button", { type: "button" });
      const pick = (next) => {
        this.tapStop = j;
        const heads = this.headsAt[j];
        const at = heads.indexOf(this.chosen);
        if (heads.length && (next || at < 0)) this.choose(heads[(at + 1) % heads.length]);
        else this.redraw();
      };
      button.addEventListener("click", () => pick(true));
      button.addEventListener("pointermove", () => { if (!this.headsAt[j].includes(this.chosen)) pick(false); });
      button.addEventListener("focus", () => pick(false));
      return button;
    });
    roving(this.tapButtons, columns, (to) => { this.tapStop = to; });
    for (let z = 0; z < slices; z++) {
      const part = element("div", { class: "kernel" });
      part.style.setProperty("--across", columns);
      part.append(...this.tapButtons.slice((z * kernel.norms.length) / slices, ((z + 1) * kernel.norms.length) / slices));
      holder.append(part);
    }
    const what = slices > 1 ? `, slice by slice` : "";
    const most = short(Math.max(...kernel.norms));
    const when = this.picture.shifts ? "attends most to that place from this query" : "looks there";
    const caption = element("figcaption", {}, `The kernel${what}: each tap’s norm over the channels (strongest colour: ${most}), with the number of every head that ${when}.`);
    return element("figure", { class: "tap-map" }, holder, caption);
  }

  /** Colours follow the theme, and numbers the heads; where neither changed, nothing is done. */
  drawKernel(taps) {
    const { kernel } = this.picture;
    const most = Math.max(...kernel.norms) || 1;
    this.headsAt = kernel.norms.map((_, j) => taps.flatMap((tap, head) => (tap === j ? [head] : [])));
    const look = JSON.stringify([this.headsAt, this.colour]);
    this.tapButtons.forEach((button, j) => {
      button.classList.toggle("chosen", taps[this.chosen] === j);
      button.tabIndex = j === this.tapStop ? 0 : -1;
      if (look === this.kernelLook) return;
      const heads = this.headsAt[j], norm = kernel.norms[j];
      const [strong, weak] = [channels(this.colour.accent), channels(this.colour.token)];
      const shade = weak.map((w, c) => Math.round(w + (strong[c] - w) * (norm / most)));
      button.style.background = `rgb(${shade.join(", ")})`;
      button.style.color = inkOn(shade);
      button.textContent = heads.length < 3 ? heads.join(", ") || "–" : `${heads[0]} +${heads.length - 1}`;
      const who = heads.length ? `head${heads.length > 1 ? "s" : ""} ${heads.join(", ")}` : "no head";
      const place = vector(placeOf(kernel.shape, j));
      button.setAttribute("aria-label", `tap ${place}, norm ${short(norm)}, ${who}`);
      button.title = `tap ${place}, norm ${norm}, ${who}`;
    });
    this.kernelLook = look;
  }

  cards() {
    const { kernel } = this.picture;
    const square = kernel && kernel.shape.length > 1 && kernel.norms.length === this.heads;
    const across = this.dims === 1 ? 1 : Math.min(this.heads, square ? kernel.shape.at(-1) : 4);
    const grid = element("div", { class: "heads", role: "radiogroup", "aria-label": "heads: arrow keys choose one" });
    grid.style.setProperty("--across", Math.max(1, across > 1 ? across : Math.min(this.heads, this.dims === 1 ? 1 : 3)));
    this.tight = across > 4;
    grid.classList.toggle("tight", this.tight);
    this.cardsOf = [];
    for (let head = 0; head < this.heads; head++) {
      const canvas = element("canvas", { role: "img" });
      const mark = element("canvas", { class: "kernel-mark", "aria-hidden": "true" });
      const text = element("span");
      const under = element("div", { class: "under" }, ...(kernel ? [mark, text] : [text]));
      const card = element("div", { class: "head", "data-head": head, role: "radio" }, canvas, under);
      // Moved, not entered: a pointer at rest is entered by what keys scroll below it.
      card.addEventListener("pointermove", () => { if (head !== this.chosen) this.choose(head); });
      card.addEventListener("focus", () => this.choose(head));
      this.follow(canvas, () => head);
      this.cardsOf.push({ card, canvas, mark, text });
      grid.append(card);
    }
    const columns = Number(grid.style.getPropertyValue("--across"));
    roving(this.cardsOf.map(({ card }) => card), columns, (head) => this.choose(head));
    const legend = this.legend();
    const hidden = this.picture.heads - this.heads;
    const more = hidden > 0 ? [element("p", { class: "small soft" }, `${hidden} more heads are not drawn.`)] : [];
    return element("div", {}, grid, ...more, legend, ...(kernel ? [this.kernel()] : []));
  }

  legend() {
    this.keys = [];
    const list = element("ul", { class: "legend" });
    const add = (kind, text) => {
      const canvas = element("canvas", { width: 28, height: 28, "aria-hidden": "true" });
      canvas.style.width = canvas.style.height = "14px";
      this.keys.push({ canvas, kind });
      list.append(element("li", {}, canvas, text));
    };
    add("input", "input pixel");
    const { inside, shape, mode, sources } = this.picture;
    if (sources.some((axis) => axis.includes(-1))) add("zero", this.picture.transposed ? "token of zeros (between inputs, or padding)" : "padding token of zeros");
    const padded = inside.some(([first, last], axis) => first > 0 || last < shape[axis] - 1);
    if (padded && mode !== "zeros") add("copy", `padding token, a copy (${mode})`);
    for (const p of [0.01, 0.25, 1]) add(p, `attention ${p === 1 ? "1" : p}`);
    return list;
  }

  drawLegend() {
    const { colour } = this;
    for (const { canvas, kind } of this.keys) {
      const pen = canvas.getContext("2d");
      pen.clearRect(0, 0, 28, 28);
      drawToken(pen, typeof kind === "string" ? kind : "input", 0, 0, 28, 28, colour);
      if (typeof kind === "string") continue;
      pen.globalAlpha = Math.sqrt(kind);
      pen.fillStyle = colour.accent;
      pen.fillRect(0, 0, 28, 28);
      pen.globalAlpha = 1;
    }
  }

  // ---- moving ----

  /** Pointing at a token moves the query to the nearest token that asks. */
  follow(canvas, headOf) {
    const move = (event) => {
      const frame = canvas.getBoundingClientRect();
      const place = [...tokenOfQuery(this.picture, this.query)];
      place[this.dims - 1] = Math.floor(((event.clientX - frame.left) / frame.width) * this.picture.shape.at(-1));
      if (this.dims > 1) place[this.dims - 2] = Math.floor(((event.clientY - frame.top) / frame.height) * this.picture.shape.at(-2));
      this.chosen = headOf();
      this.moveTo(place.map((x, axis) => nearest(this.picture.queries[axis], x)));
    };
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerdown", move);
  }

  key(event) {
    const steps = {
      ArrowLeft: [-1, -1], ArrowRight: [-1, 1], ArrowUp: [-2, -1], ArrowDown: [-2, 1], PageUp: [-3, -1], PageDown: [-3, 1],
    };
    const query = [...this.query];
    if (event.key === "Home") query.fill(0);
    else if (event.key === "End") query.forEach((_, axis) => { query[axis] = this.picture.queries[axis].length - 1; });
    else if (event.key in steps) {
      const [from, step] = steps[event.key];
      const axis = this.dims + from;
      if (axis < 0) return;
      query[axis] = Math.max(0, Math.min(this.picture.queries[axis].length - 1, query[axis] + step));
    } else return;
    event.preventDefault();
    this.moveTo(query);
  }

  moveTo(query) {
    this.query = query;
    this.redraw();
  }

  choose(head) {
    this.chosen = head;
    this.tapStop = this.taps?.[head] ?? this.tapStop;
    this.redraw();
  }

  /** Draw once before the next frame, however often something changed. */
  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    const { picture, query } = this;
    // All sizes are read before anything is drawn: reading one afterwards would lay the page out again.
    this.colour = colours();
    const width = this.main.clientWidth;
    this.cardWidth = this.cardsOf[0].canvas.clientWidth;
    const factor = picture.factors ? picture.factors[this.stop] : 1;
    const maps = Array.from({ length: this.heads }, (_, head) => probabilities(picture, head, query, factor));
    const together = maps[0].slice();
    for (const map of maps) map.forEach((p, key) => { if (p > together[key]) together[key] = p; });
    const slice = this.dims === 3 ? this.slice ?? tokenOfQuery(picture, query)[0] : 0;
    drawGrid(this.main, width, this.colour, picture, together, query, slice, true);
    this.main.setAttribute("aria-label", `query of output ${vector(query)}; ${this.heads} heads`);
    this.taps = picture.shifts ? maps.map((map) => tapAt(picture, query, argmax(map))) : picture.taps;
    maps.forEach((map, head) => this.drawCard(head, map));
    if (picture.kernel) this.drawKernel(this.taps);
    this.drawLegend();
    this.describeQuery(maps);
    if (picture.factors) this.describeSharpness();
  }

  drawCard(head, map) {
    const { card, canvas, mark, text } = this.cardsOf[head];
    const best = argmax(map);
    const slice = this.dims === 3 ? this.slice ?? placeOf(this.picture.shape, best)[0] : 0;
    drawGrid(canvas, this.cardWidth, this.colour, this.picture, map, this.query, slice, false);
    if (this.picture.kernel) drawMark(mark, this.colour, this.picture.kernel, this.taps[head]);
    card.classList.toggle("chosen", head === this.chosen);
    card.setAttribute("aria-checked", head === this.chosen);
    card.tabIndex = head === this.chosen ? 0 : -1;
    const centre = this.picture.centres[head];
    const shift = centre ? element("span", { class: "shift" }, `${this.tight ? "" : "τ "}${vector(centre.shift)}`) : "";
    const lines = [element("b", {}, `${this.tight ? "" : "head "}${head}`), " ", shift, element("br"), percent(map[best], this.picture.bits)];
    if (this.dims === 3) lines.push(`, slice ${slice}`);
    text.replaceChildren(...lines);
    const said = `head ${head}: ${percent(map[best], this.picture.bits)} on ${describe(this.picture, best)}`;
    for (const one of [card, canvas]) one.setAttribute("aria-label", said);
  }

  /** In words: which output asks, from which token, and where the chosen head looks. */
  describeQuery(maps) {
    const { picture, query, chosen } = this;
    const map = maps[chosen], best = argmax(map), tap = this.taps[chosen];
    const carried = picture.carried[chosen];
    let sentence = `Output ${vector(query)} asks at token ${vector(tokenOfQuery(picture, query))}. Head ${chosen} gives ${percent(map[best], picture.bits)} to ${describe(picture, best)}`;
    const matrix = `carries a matrix of norm ${short(carried ?? 0)}`;
    if (picture.shifts) {
      sentence += tap === null ? ", which no tap of the kernel reads from here" : `, which tap ${vector(placeOf(picture.kernel.shape, tap))} reads from here`;
      sentence += `. Where it looks depends on the image; it ${matrix}`;
    } else if (tap !== null) sentence += `, and multiplies it by tap ${vector(placeOf(picture.kernel.shape, tap))}, of norm ${short(carried)}`;
    else if (carried !== null && picture.maps) sentence += `. Where it looks depends on the image; it ${matrix}`;
    else if (carried !== null) sentence += picture.centres[chosen] === null ? `; it looks at no single key, and ${matrix}` : `; it looks at no tap of the kernel, and ${matrix}`;
    this.readout.textContent = `${sentence}.`;
  }

  describeSharpness() {
    const { picture, query, stop } = this;
    if (!this.worstAt.has(query.join())) this.worstAt.set(query.join(), worstLeakage(picture, query));
    this.worst = this.worstAt.get(query.join());
    const { measured, bound } = this.worst[stop];
    const name = stopName(picture, stop);
    this.sharp.textContent = name;
    this.slider.setAttribute("aria-valuetext", name);
    let text = "No head looks at a single key of the grid from here, so there is no leakage to speak of.";
    if (measured !== null) {
      text = `Greatest leakage of a head from this query: ${short(measured)}` + (bound === null ? "; no bound was worked out." : ` ≤ ${shortAbove(bound)}, the bound on any grid.`);
      this.leak.title = `measured ${measured}` + (bound === null ? "" : `, bound ${bound}`);
    }
    const off = picture.centres.filter((_, head) => centreKey(picture, head, query) === null).length;
    if (off && measured !== null) text += ` ${off === 1 ? "1 head looks" : `${off} heads look`} at no single key of this grid.`;
    this.leak.textContent = text;
    drawChart(this.chart, picture, this.worst, stop);
  }
}

/** Of many controls one is a stop of the tabulator key; arrow keys, Home and End go from one to another. */
function roving(controls, columns, choose) {
  controls.forEach((control, at) => control.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    let to = at + (steps[event.key] ?? 0);
    if (event.key === "Home") to = 0;
    else if (event.key === "End") to = controls.length - 1;
    else if (!(event.key in steps)) return;
    event.preventDefault();
    if (controls[to] === undefined || to === at) return;
    choose(to);
    for (const [k, one] of controls.entries()) one.tabIndex = k === to ? 0 : -1;
    controls[to].focus();
  }));
}

/** The index of the number nearest to x. */
function nearest(numbers, x) {
  let best = 0;
  numbers.forEach((n, k) => { if (Math.abs(n - x) < Math.abs(numbers[best] - x)) best = k; });
  return best;
}

// ---- the page ------------------------------------------------------------------------------------------------------------

const shown = new Map();

/** A picture is made when its layer is first opened: a network may have hundreds. */
function open(details) {
  const host = details.querySelector(".picture");
  if (!details.open || host === null || shown.has(host)) return;
  shown.set(host, new AttentionPicture(host, pictures[host.dataset.layer]));
}

for (const details of document.querySelectorAll("details.layer")) {
  details.addEventListener("toggle", () => open(details));
  open(details);
}

const theme = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
}

function themed() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", `switch to the ${isDark() ? "light" : "dark"} theme`);
  for (const picture of shown.values()) picture.redraw();
}

theme.hidden = false;
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  themed();
});
system.addEventListener("change", themed);
themed();
