"use strict";

// The attention of each layer, worked out live.
//
// A head's score for the key k at the query q is c·r(k − q), with c = Ŵ_keyᵀ v read from the layer's own weights and r its
// encoding; softmax over all keys gives what it attends to.  Nothing here knows the kernel or where a head "should" look.

const pictures = JSON.parse(document.getElementById("data").textContent);
for (const [index, picture] of Object.entries(pictures)) prepared(picture, index);

function prepared(picture, index) {
  picture.index = index;
  picture.places = Array.from({ length: size(picture.shape) }, (_, key) => placeOf(picture.shape, key));
  picture.kinds = picture.places.map((place) => kindOf(picture, place));
  picture.asked = picture.queries.map((axis) => axis.length);
  return picture;
}

function size(shape) {
  return shape.reduce((product, n) => product * n, 1);
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
  const keys = size(picture.shape);
  const start = (head * size(picture.asked) + numberOf(picture.asked, query)) * keys;
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

// ---- Eq. 3: the output -----------------------------------------------------------------------------------------------------

function float64(text) {
  return new Float64Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
}

/** The number of the input position that a token holds, or −1 for a token of zeros. */
function sourceOf(picture, place) {
  const source = place.map((x, axis) => picture.sources[axis][x]);
  return source.some((x) => x < 0) ? -1 : numberOf(picture.input, source);
}

/** How far each score lies below the head's greatest, for every query and head. */
function gapsOf(picture) {
  const queries = Array.from({ length: size(picture.asked) }, (_, number) => placeOf(picture.asked, number));
  return queries.map((query) => picture.centres.map((_, head) => {
    const scores = scoresOf(picture, head, query), most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
    return scores.map((score) => score - most);
  }));
}

/** What no slider changes: every head's value z = X W_val W_out of every token, the gaps, and the convolution's output. */
function prepareLive(picture) {
  const { live } = picture;
  if (live.tokens) return live;
  const values = float64(live.values), positions = size(picture.input);
  const sources = picture.places.map((place) => sourceOf(picture, place));
  live.tokens = picture.centres.map((_, head) => Float64Array.from(sources, (at) => (at < 0 ? 0 : values[head * positions + at])));
  live.convolution = float64(live.expected);
  live.gaps = gapsOf(picture);
  live.at = new Map();
  return live;
}

/** y(q) = b + Σ_h Σ_k P_h(q, k) z_h(k) for every query of the crop, and the greatest distance from the convolution's. */
function outputs(picture, stop) {
  const live = prepareLive(picture);
  if (live.at.has(stop)) return live.at.get(stop);
  const output = new Float64Array(size(picture.asked)).fill(live.bias);
  for (let number = 0; number < output.length; number++) {
    live.tokens.forEach((values, head) => {
      const gaps = live.gaps[number][head], factor = picture.factors[stop];
      let total = 0, sum = 0;
      for (let k = 0; k < gaps.length; k++) {
        const exponent = factor * gaps[k];
        if (exponent < -746) continue;  // e to this is 0 in float64
        const weight = Math.exp(exponent);
        total += weight;
        sum += weight * values[k];
      }
      output[number] += sum / total;
    });
  }
  const difference = output.map((y, number) => y - live.convolution[number]);
  const result = { output, difference, greatest: difference.reduce((most, x) => Math.max(most, Math.abs(x)), 0) };
  live.at.set(stop, result);
  return result;
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
  const source = `input (${place.map((x, axis) => picture.sources[axis][x]).join(", ")})`;
  const zeros = isPadding(picture, place) ? "the padding of zeros" : "a zero between two inputs";
  return { input: source, copy: `the padding, a copy of ${source}`, zero: `${zeros}, token (${place.join(", ")})` }[kindOf(picture, place)];
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
  if (x > 0 && x < 1e-300) return "below 1e−300";
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
