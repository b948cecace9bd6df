// ---- drawing -------------------------------------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function svg(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

const NAMES = ["heat", "cold", "token", "hatch", "query", "paper", "dark", "light"];

/** The colours of the theme. */
function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** From one colour "#rrggbb" to another. */
function mix(from, to, share) {
  const [a, b] = [from, to].map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
  return `rgb(${a.map((x, c) => Math.round(x + (b[c] - x) * Math.max(0, Math.min(1, share)))).join(", ")})`;
}

/** Rows, columns, and the sides of a cell in device pixels, of one slice of a grid that is `width` wide. */
function layout(shape, width) {
  const columns = shape.at(-1), rows = shape.length > 1 ? shape.at(-2) : 1;
  const cell = Math.max(2, Math.round((2 * width) / columns));
  return { rows, columns, cell, height: rows === 1 ? Math.min(Math.max(cell, 36), 72) : cell };
}

const bases = new Map();

/** The image below the attention: its padding faded, tokens of zeros struck through.  All heads and queries share it. */
function baseGrid(box, colour, picture, slice) {
  const name = [picture.index, slice, box.cell, box.height, colour.paper, picture.image?.bytes].join();
  if (bases.has(name)) return bases.get(name);
  if (bases.size > 400) bases.clear();
  const canvas = element("canvas", { width: box.columns * box.cell, height: box.rows * box.height });
  const pen = canvas.getContext("2d");
  const shades = picture.image ? Uint8Array.from(atob(picture.image.bytes), (letter) => letter.charCodeAt(0)) : null;
  pen.strokeStyle = colour.hatch;
  pen.lineWidth = box.cell < 12 ? 1 : 2;
  for (let number = 0; number < box.rows * box.columns; number++) {
    const key = slice * box.rows * box.columns + number, kind = picture.kinds[key];
    const [x, y] = [(number % box.columns) * box.cell, Math.floor(number / box.columns) * box.height];
    pen.fillStyle = colour.paper;
    pen.fillRect(x, y, box.cell, box.height);
    if (kind === "zero") {
      if (box.cell < 12) continue;  // strokes would be noise
      pen.beginPath();
      pen.moveTo(x + 0.25 * box.cell, y + 0.75 * box.height);
      pen.lineTo(x + 0.75 * box.cell, y + 0.25 * box.height);
      pen.stroke();
      continue;
    }
    const gap = shades ? 0 : 1;  // plain tokens are told apart by gaps
    pen.fillStyle = shades ? mix(colour.dark, colour.light, shades[sourceOf(picture, picture.places[key])] / 255) : colour.token;
    pen.globalAlpha = kind === "copy" ? 0.35 : 1;
    pen.fillRect(x, y, box.cell - gap, box.height - gap);
    pen.globalAlpha = 1;
  }
  const [columns, rows] = [picture.inside.at(-1), picture.inside.at(-2) ?? [0, 0]];
  pen.strokeRect(columns[0] * box.cell + 0.5, rows[0] * box.height + 0.5,
    (columns[1] - columns[0] + 1) * box.cell - 1, (rows[1] - rows[0] + 1) * box.height - 1);
  bases.set(name, canvas);
  return canvas;
}

const LEAST_MARK = 7;  // device pixels of what has to be found: the query, and what a head looks at

/** A black frame with white edges, seen on any shade. */
function drawRing(pen, colour, x, y, width, height) {
  const thick = Math.max(1.5, Math.min(width, height, 60) / 10);
  for (const [ring, lineWidth] of [[colour.light, 2 * thick], [colour.query, thick]]) {
    Object.assign(pen, { strokeStyle: ring, lineWidth });
    pen.strokeRect(x + thick, y + thick, width - 2 * thick, height - 2 * thick);
  }
}

/** Attention over the image: the opacity is the square root of the probability, so that little is seen too. */
function drawAttention(canvas, width, colour, picture, attention, query) {
  const box = layout(picture.shape, width || 120);
  const cells = box.rows * box.columns, slice = Math.floor(argmax(attention) / cells);  // of a volume, where the head looks
  const base = baseGrid(box, colour, picture, slice);
  if (canvas.width !== base.width || canvas.height !== base.height) [canvas.width, canvas.height] = [base.width, base.height];
  const pen = canvas.getContext("2d");
  pen.globalAlpha = 1;
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(base, 0, 0);
  pen.fillStyle = colour.heat;
  for (let number = 0; number < cells; number++) {
    const p = attention[slice * cells + number];
    if (!(p > 1e-6)) continue;  // an opacity of less than a thousandth
    const [row, column] = [Math.floor(number / box.columns), number % box.columns];
    const more = p > 0.2 ? Math.max(0, LEAST_MARK - box.cell) / 2 : 0;  // a tiny token that gets much is drawn larger
    pen.globalAlpha = Math.sqrt(Math.min(1, p));
    pen.fillRect(column * box.cell - more, row * box.height - more, box.cell + 2 * more, box.height + 2 * more);
  }
  pen.globalAlpha = 1;
  const from = tokenOfQuery(picture, query);
  if (from.length === 3 && from[0] !== slice) return slice;
  const more = Math.max(0, LEAST_MARK + 3 - box.cell) / 2, top = from.length > 1 ? from.at(-2) * box.height : 0;
  drawRing(pen, colour, from.at(-1) * box.cell - more, top - more, box.cell + 2 * more, box.height + 2 * more);
  return slice;
}

/** A plane of numbers, of a volume the slice of the query, with the query's own place outlined. */
function drawPlane(canvas, width, colour, shape, colourOf, query) {
  const box = layout(shape, width || 120);
  const slice = shape.length === 3 && query ? query[0] : 0;
  [canvas.width, canvas.height] = [box.columns * box.cell, box.rows * box.height];
  const pen = canvas.getContext("2d");
  for (let number = 0; number < box.rows * box.columns; number++) {
    pen.fillStyle = colourOf(slice * box.rows * box.columns + number);
    pen.fillRect((number % box.columns) * box.cell, Math.floor(number / box.columns) * box.height, box.cell, box.height);
  }
  if (query) drawRing(pen, colour, query.at(-1) * box.cell, (query.at(-2) ?? 0) * box.height, box.cell, box.height);
}

const CHART = { width: 340, height: 180, left: 50, bottom: 40, top: 10, right: 12, floor: Math.log10(2 ** -150) };

/** Leakage against sharpness, on logarithmic axes that end where a number is 0 in float32; a curve ends there too. */
function drawChart(chart, picture, worst, stop) {
  const { width, height, left, bottom, top, right, floor } = CHART;
  const stops = picture.factors.length - 1;  // the last factor is the layer's own
  const across = (k) => left + ((width - left - right) * k) / (stops - 1);
  const up = (power) => top + (height - top - bottom) * (power / floor);
  const place = (alpha) => Math.max(0, Math.min(stops - 1, 2 * Math.log2(alpha) + 4));
  const curve = (values) => {
    const powers = values.slice(0, stops).map((x) => Math.log10(x));  // −∞ for 0
    let end = powers.findIndex((power) => power < floor);
    const points = powers.slice(0, end < 0 ? stops : end).map((power, k) => `${across(k)},${up(power)}`);
    if (end > 0) {
      const before = powers[end - 1], share = (before - floor) / (before - Math.max(powers[end], -340));
      points.push(`${across(end - 1 + share)},${up(floor)}`);
      end += share - 1;
    }
    return [points.join(" "), end];
  };
  const [measured, end] = curve(worst.map((w) => w.measured));
  const parts = [];
  if (end >= 0) parts.push(svg("rect", { class: "none", x: across(end), y: top, width: width - right - across(end), height: height - top - bottom }));
  for (const power of [0, -15, -30, -45]) {
    parts.push(svg("line", { class: "axis", x1: left, x2: width - right, y1: up(power), y2: up(power) }));
    parts.push(svg("text", { x: left - 6, y: up(power) + 4, "text-anchor": "end" }, power === 0 ? "1" : `1e−${-power}`));
  }
  for (const [k, name, anchor] of [[0, "0.25", "start"], [8, "4", "middle"], [16, "64", "middle"], [24, "1024", "end"]]) {
    parts.push(svg("text", { x: across(k), y: height - bottom + 15, "text-anchor": anchor }, name));
  }
  parts.push(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, picture.alpha === null ? "1024 × factor on the scores" : "sharpness α of the softest head"));
  if (end >= 0 && width - right - across(end) > 60) {
    const middle = (across(end) + width - right) / 2;
    ["exactly 0", "in float32"].forEach((text, k) => parts.push(svg("text", { x: middle, y: height / 2 - 20 + 14 * k, "text-anchor": "middle" }, text)));
  }
  parts.push(svg("polyline", { class: "measured", points: measured }));
  if (worst.every((w) => w.bound !== null)) parts.push(svg("polyline", { class: "bound", points: curve(worst.map((w) => w.bound))[0] }));
  const here = Math.log10(worst[stop].measured);
  parts.push(svg("circle", { class: "here", cx: across(place((picture.alpha ?? 1024) * picture.factors[stop])), cy: up(Math.max(here, floor)), r: 5 }));
  chart.replaceChildren(...parts);
}
