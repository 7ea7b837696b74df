// The step from 0 to its end as one stacked bar of what its critical path does. Traits: see verdict_view.py.

/** @typedef {{label: string, kind: string, color: string, ink: string, share: number, text: string}} VerdictPart */

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
  const label = element("span", { class: "bl-verdict-label", title: `${meaning}; the tick is the lower bound` }, "step breakdown");
  const bar = element("div", { class: "bl-verdict-bar", role: "toolbar", "aria-label": meaning });
  const tick = element("span", { class: "bl-verdict-bound", hidden: true });
  const live = element("div", { class: "bl-hidden", role: "status", "aria-live": "polite" });
  el.replaceChildren(label, bar, live);

  function draw() {
    const parts = /** @type {VerdictPart[]} */ (model.get("parts"));
    const pieces = parts.map((part, k) => {
      const words = `${part.label} ${formatShare(part.share)}`;
      const piece = button("", `${part.text}. A click shows its longest stretch.`, () => model.send({ type: "zoom", part: k }));
      piece.className = `bl-verdict-part bl-verdict-${part.kind}`;
      piece.setAttribute("aria-label", part.text);
      piece.style.flexGrow = String(Math.max(part.share, 0.002));
      if (part.color) {
        piece.style.background = part.color;
        piece.style.color = part.ink;
      }
      piece.append(element("span", {}, words));
      return piece;
    });
    const bound = model.get("bound");
    tick.hidden = !(bound >= 0 && bound <= 1 && pieces.length);
    tick.style.left = `calc(${100 * bound}% - 1px)`;
    tick.title = model.get("bound_text");
    bar.replaceChildren(...pieces, tick);
    bar.hidden = label.hidden = !pieces.length;
    rove(bar);
    fitWords();
  }

  /** A word is shown where its piece is wide enough, and beside the tick of the bound where that would cross it. */
  function fitWords() {
    for (const piece of bar.querySelectorAll("button")) {
      const words = /** @type {HTMLElement} */ (piece.firstElementChild);
      const shift = tick.hidden ? 0 : wordShift(piece.clientWidth, words.offsetWidth, tick.offsetLeft + 1 - piece.offsetLeft);
      words.style.visibility = shift === null || words.offsetWidth + 6 > piece.clientWidth ? "hidden" : "";
      words.style.left = `${shift ?? 0}px`;
    }
  }
  const sizes = new ResizeObserver(fitWords);
  sizes.observe(bar);
  const say = () => { live.textContent = model.get("announcement"); };
  draw();
  say();
  const stop = listen(model, { parts: draw, bound: draw, bound_text: draw, announcement: say });
  return () => { stop(); sizes.disconnect(); };
}

export default { render };
