// The step from 0 to its end as one stacked bar of what its critical path does. Traits: see verdict_view.py.

/** @typedef {{label: string, kind: string, color: string, ink: string, share: number, text: string}} VerdictPart */
/** A label below the bar: its middle should be at `at` of `width` pixels. @typedef {{at: number, wide: number, share: number}} BarLabel */

const GAP = 10; // pixels between labels below the bar

/** The left edges of labels below the bar between `from` and `to`, each near its place, in the order of their places and apart from each
 * other; where there is no room for all, those with the smallest shares have none (null).
 * @param {BarLabel[]} labels @param {number} from @param {number} to pixels of the bar @returns {(number | null)[]} */
function labelPlaces(labels, from, to) {
  const shown = labels.map((_, k) => k).sort((a, b) => labels[b].share - labels[a].share || a - b);
  const needed = () => shown.reduce((sum, k) => sum + labels[k].wide + GAP, -GAP);
  while (shown.length && needed() > to - from) shown.pop();
  shown.sort((a, b) => labels[a].at - labels[b].at || a - b);
  /** @type {(number | null)[]} */
  const lefts = labels.map(() => null);
  let free = from;
  for (const k of shown) {
    lefts[k] = Math.max(labels[k].at - labels[k].wide / 2, free);
    free = /** @type {number} */ (lefts[k]) + labels[k].wide + GAP;
  }
  let end = to;
  for (const k of shown.reverse()) {
    lefts[k] = Math.min(/** @type {number} */ (lefts[k]), end - labels[k].wide);
    end = /** @type {number} */ (lefts[k]) - GAP;
  }
  return lefts;
}

/** The same beside the text of the tick, which takes the pixels from `left` to `right`: labels stay on their side of it where there is room.
 * @param {BarLabel[]} labels @param {number} width of the bar @param {number} left @param {number} right @returns {(number | null)[]} */
function placesBeside(labels, width, left, right) {
  const isBefore = labels.map(({ at }) => at < left || (at < right && left > width - right));
  const room = (/** @type {boolean} */ first) => labels.reduce((free, { wide }, k) => (isBefore[k] === first ? free - wide - GAP : free), first ? left : width - right);
  for (const first of [false, true]) {
    const order = labels.map((_, k) => k).filter((k) => isBefore[k] === first).sort((a, b) => (first ? labels[b].at - labels[a].at : labels[a].at - labels[b].at));
    for (const k of order) if (room(first) < 0 && room(!first) >= labels[k].wide + GAP) isBefore[k] = !first;
  }
  const [before, after] = [labelPlaces(labels.filter((_, k) => isBefore[k]), 0, left - GAP), labelPlaces(labels.filter((_, k) => !isBefore[k]), right + GAP, width)];
  return isBefore.map((first) => /** @type {number | null} */ ((first ? before : after).shift() ?? null));
}

/** How far a word moves from the middle of its piece so that a tick does not cross it; null where neither side has room.
 * @param {number} piece width @param {number} word width @param {number} tick position within the piece, all in pixels */
function wordShift(piece, word, tick) {
  const clear = word / 2 + 5;
  if (Math.abs(tick - piece / 2) >= clear) return 0;
  const room = word + 8;
  if (Math.max(tick, piece - tick) < room) return null;
  return (tick > piece - tick ? tick - clear : tick + clear) - piece / 2;
}

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  el.classList.add("bl-view", "bl-verdict");
  const meaning = "what the critical path does from 0 to the end of the step";
  const label = element("span", { class: "bl-verdict-label", title: `${meaning}; the tick is the lower bound` },
    element("span", {}, "step breakdown"), element("span", {}, "of the critical path"));
  const bar = element("div", { class: "bl-verdict-bar", role: "toolbar", "aria-label": meaning });
  const tick = element("span", { class: "bl-verdict-bound", hidden: true });
  const below = element("div", { class: "bl-verdict-below" });
  const boundText = element("span", {});
  const bound = element("span", { class: "bl-verdict-bound-text" }, element("span", { class: "bl-verdict-tick" }), boundText);
  const live = element("div", { class: "bl-hidden", role: "status", "aria-live": "polite" });
  el.replaceChildren(label, element("div", { class: "bl-verdict-column" }, bar, below), live);

  function draw() {
    const parts = /** @type {VerdictPart[]} */ (model.get("parts"));
    const pieces = parts.map((part, k) => {
      const piece = button("", `${part.text}. A click shows its longest stretch.`, () => model.send({ type: "zoom", part: k }));
      piece.className = `bl-verdict-part bl-verdict-${part.kind}`;
      piece.setAttribute("aria-label", part.text);
      piece.style.flexGrow = String(Math.max(part.share, 0.002));
      if (part.color) {
        piece.style.background = part.color;
        piece.style.color = part.ink;
      }
      piece.append(element("span", {}, wordsOf(part)));
      return piece;
    });
    const share = model.get("bound");
    tick.hidden = !(share >= 0 && share <= 1 && pieces.length);
    tick.style.left = `clamp(0px, calc(${100 * share}% - 1px), calc(100% - 2px))`;
    tick.title = boundText.textContent = model.get("bound_text");
    bar.replaceChildren(...pieces, tick);
    bar.hidden = label.hidden = below.hidden = !pieces.length;
    rove(bar);
    fitWords();
  }

  const wordsOf = (/** @type {VerdictPart} */ part) => `${part.label} ${formatShare(part.share)}`;

  /** A word is shown where its piece is wide enough, and beside the tick of the bound where that would cross it; else below the bar,
   * where the text of the tick begins or ends at the tick. */
  function fitWords() {
    const parts = /** @type {VerdictPart[]} */ (model.get("parts"));
    /** @type {{at: number, share: number, node: HTMLElement}[]} */
    const labels = [];
    [...bar.querySelectorAll("button")].forEach((piece, k) => {
      const words = /** @type {HTMLElement} */ (piece.firstElementChild);
      const shift = tick.hidden ? 0 : wordShift(piece.clientWidth, words.offsetWidth, tick.offsetLeft + 1 - piece.offsetLeft);
      const isHidden = shift === null || words.offsetWidth + 6 > piece.clientWidth;
      words.style.visibility = isHidden ? "hidden" : "";
      words.style.left = `${shift ?? 0}px`;
      if (!isHidden || !parts[k]) return;
      const swatch = element("span", { class: `bl-verdict-swatch bl-verdict-${parts[k].kind}` });
      if (parts[k].color) swatch.style.background = parts[k].color;
      labels.push({ at: piece.offsetLeft + piece.clientWidth / 2, share: parts[k].share, node: element("span", {}, swatch, wordsOf(parts[k])) });
    });
    below.replaceChildren(...labels.map(({ node }) => node), ...(tick.hidden ? [] : [bound]));
    const sizes = labels.map(({ at, share, node }) => ({ at, share, wide: node.offsetWidth }));
    const [width, text] = [below.clientWidth, bound.offsetWidth];
    const at = tick.offsetLeft + bar.clientLeft;
    const left = at + text <= width ? at : at + tick.offsetWidth - text; // its own tick goes on with the bar's
    bound.classList.toggle("bl-verdict-leftward", left < at);
    bound.style.left = `${left}px`;
    const places = tick.hidden ? labelPlaces(sizes, 0, width) : placesBeside(sizes, width, left, left + text);
    places.forEach((left, k) => {
      labels[k].node.hidden = left === null;
      labels[k].node.style.left = `${left ?? 0}px`;
    });
  }
  const observer = new ResizeObserver(fitWords);
  observer.observe(bar);
  const say = () => { live.textContent = model.get("announcement"); };
  draw();
  say();
  const stop = listen(model, { parts: draw, bound: draw, bound_text: draw, announcement: say });
  return () => { stop(); observer.disconnect(); };
}

export default { render };
