// ---- a kernel that is typed, and a digit that is drawn ---------------------------------------------------------------------

const SIDE = 14;
const SEVEN = [[2.5, 3.5], [2.5, 10], [11.5, 6]];  // corners of a stroke: row, column
const UNIT = 2 ** -53, ROUNDING = (2 * 9 * UNIT) / (1 - 9 * UNIT);  // of two sums of nine products, relative to Σ |w x|

/** One layer of nine heads for any 3 × 3 kernel: head h looks at its tap's pixel, by the scores −α‖δ − Δ_h‖² up to a constant. */
function tryPicture(alpha) {
  const axis = Array.from({ length: SIDE }, (_, k) => k), twice = (one) => [one, one];
  const shifts = Array.from({ length: 9 }, (_, head) => placeOf([3, 3], head).map((x) => x - 1));
  return {
    input: twice(SIDE), shape: twice(SIDE + 2), queries: twice(axis.map((k) => k + 1)), sources: twice([-1, ...axis, -1]), inside: twice([1, SIDE]),
    crop: "", image: { of: "your drawing", low: 0, high: 1 }, radix: null, heads: 9, kernel: [3, 3], taps: shifts.map((_, head) => head),
    c: shifts.map((shift) => [-alpha, ...shift.map((x) => 2 * alpha * x)]),
    centres: shifts.map((shift) => ({ shift, alpha })),
    alpha, factors: [...STOPS.map((stop) => stop / alpha), 1],
    live: { channel: 0, of: 1, bias: 0 },
  };
}

/** The convolution by its definition, padded by 1 with zeros; it knows nothing of attention. */
function convolved(pixels, kernel) {
  const output = new Float64Array(SIDE * SIDE);
  for (let row = 0; row < SIDE; row++) {
    for (let column = 0; column < SIDE; column++) {
      for (let tap = 0; tap < 9; tap++) {
        const [i, j] = [row + Math.floor(tap / 3) - 1, column + (tap % 3) - 1];
        if (i >= 0 && i < SIDE && j >= 0 && j < SIDE) output[row * SIDE + column] += kernel[tap] * pixels[i * SIDE + j];
      }
    }
  }
  return output;
}

function startTry() {
  const taps = [...document.querySelectorAll("#kernel input")], pixels = new Float64Array(SIDE * SIDE);
  const picture = pictures.try = prepared(tryPicture(sharpened[0]?.alpha ?? 1024), "try");
  const { live, image } = picture, sources = picture.places.map((place) => sourceOf(picture, place));
  let kernel, last;

  const compute = () => {
    kernel = taps.map((input) => (input.checkValidity() ? input.valueAsNumber : 0));
    image.bytes = btoa(String.fromCharCode(...pixels.map((x) => Math.round(255 * x))));
    picture.carried = kernel.map(Math.abs);
    live.convolution = convolved(pixels, kernel);
    live.tokens = kernel.map((tap) => Float64Array.from(sources, (at) => (at < 0 ? 0 : tap * pixels[at])));
    live.at = new Map();
    redraw();
  };
  const dab = (row, column) => {
    for (let at = 0; at < pixels.length; at++) {
      const away = Math.hypot(Math.floor(at / SIDE) + 0.5 - row, (at % SIDE) + 0.5 - column);
      pixels[at] = Math.max(pixels[at], Math.min(1, 1.5 - away));
    }
  };
  const strokeTo = (row, column) => {
    const [fromRow, fromColumn] = last ?? [row, column], steps = Math.ceil(4 * Math.hypot(row - fromRow, column - fromColumn)) || 1;
    for (let k = 1; k <= steps; k++) dab(fromRow + ((row - fromRow) * k) / steps, fromColumn + ((column - fromColumn) * k) / steps);
    last = [row, column];
  };
  const clear = () => { pixels.fill(0); last = null; };
  const drawSeven = () => { clear(); for (const corner of SEVEN) strokeTo(...corner); };

  addHeads(picture, byId("try-heads"));
  const { canvas } = addOutputs(document.querySelector("#try .outputs")).input;
  canvas.id = "draw";
  canvas.tabIndex = 0;
  canvas.nextSibling.firstChild.textContent = "Input: draw here";
  const pen = (event) => {
    if (event.type === "pointerdown") { canvas.setPointerCapture(event.pointerId); last = null; }
    if (!canvas.hasPointerCapture(event.pointerId)) return;
    const frame = canvas.getBoundingClientRect();
    strokeTo(((event.clientY - frame.top) / frame.height) * SIDE, ((event.clientX - frame.left) / frame.width) * SIDE);
    compute();
  };
  canvas.addEventListener("pointerdown", pen);
  canvas.addEventListener("pointermove", pen);
  canvas.addEventListener("keydown", (event) => {
    if (event.key !== " ") return moveByKey(event, picture);
    event.preventDefault();
    dab(...queryOf(picture).map((x) => x + 0.5));
    compute();
  });
  for (const input of taps) input.addEventListener("input", compute);
  byId("clear").addEventListener("click", () => { clear(); compute(); });
  byId("seven").addEventListener("click", () => { drawSeven(); compute(); });

  blocks.push(() => {
    const { greatest } = outputs(picture, state.stop), alpha = Number((picture.alpha * picture.factors[state.stop]).toPrecision(4));
    const sum = kernel.reduce((total, tap) => total + Math.abs(tap), 0);  // no pixel is above 1
    let said = `At α = ${alpha} convolution and attention, two separate computations, differ by at most ${short(greatest)}`;
    if (greatest === 0) said = `At α = ${alpha} convolution and attention, two separate computations, give exactly the same numbers`;
    else if (greatest <= ROUNDING * sum) said += ", which the rounding of nine products and sums explains";
    if (taps.some((input) => !input.checkValidity())) said += ". A tap that is no number from −1000 to 1000 counts as 0";
    byId("try-words").textContent = `${said}.`;
  });
  live.gaps = gapsOf(picture);
  drawSeven();
  compute();
}

if (byId("try") && sharpened.length) {
  byId("try").hidden = false;
  startTry();
}
