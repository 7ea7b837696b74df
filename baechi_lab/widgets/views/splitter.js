// A bar between two parts: a drag or keys change how much room one of them has. Traits: see splitter.py.

/** The size after a key, or undefined if the key is none of the splitter's.
 * @param {string} key @param {number} size @param {[number, number]} limits @param {boolean} vertical @param {number} growth */
function sizeAfterKey(key, size, limits, vertical, growth) {
  const step = { [vertical ? "ArrowRight" : "ArrowDown"]: 16 * growth, [vertical ? "ArrowLeft" : "ArrowUp"]: -16 * growth }[key];
  const wanted = step === undefined ? { Home: limits[0], End: limits[1] }[key] : size + step;
  return wanted === undefined ? undefined : Math.round(Math.min(Math.max(wanted, limits[0]), limits[1]));
}

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  const [part, vertical, growth, limits] = [model.get("part"), Boolean(model.get("vertical")), model.get("growth"), model.get("limits")];
  const bench = () => /** @type {HTMLElement | null} */ (el.closest(".bl-workbench"));
  const room = () => {
    const box = bench()?.querySelector(`.bl-sized-${part}`)?.getBoundingClientRect();
    return (vertical ? box?.width : box?.height) ?? 0;
  };
  el.classList.add("bl-splitter");
  for (const [name, value] of Object.entries({
    role: "separator", tabindex: "0", "aria-label": model.get("label"), "aria-orientation": vertical ? "vertical" : "horizontal",
    "aria-valuemin": limits[0], "aria-valuemax": limits[1], "data-lm-suppress-shortcuts": "true",
    title: `${model.get("label")}: drag, or arrow keys; double-click for the default`,
  })) el.setAttribute(name, String(value));
  const show = (size) => {
    if (size) bench()?.style.setProperty(`--bl-${part}`, `${size}px`);
    else bench()?.style.removeProperty(`--bl-${part}`);
    el.setAttribute("aria-valuenow", String(Math.min(Math.max(size || Math.round(room()), limits[0]), limits[1])));
  };
  const draw = () => show(model.get("size"));
  const set = (size) => {
    model.set("size", size);
    model.save_changes();
  };
  const at = (event) => (vertical ? event.clientX : event.clientY);
  el.addEventListener("pointerdown", (event) => {
    const [start, before] = [at(event), room()];
    let size = model.get("size");
    const move = (moved) => {
      size = Math.round(Math.min(Math.max(before + growth * (at(moved) - start), limits[0]), limits[1]));
      show(size);
    };
    el.setPointerCapture(event.pointerId);
    el.addEventListener("pointermove", move);
    el.addEventListener("lostpointercapture", () => {
      el.removeEventListener("pointermove", move);
      set(size);
    }, { once: true });
  });
  el.addEventListener("dblclick", () => set(0));
  el.addEventListener("keydown", (event) => {
    const size = event.key === "Escape" ? 0 : sizeAfterKey(event.key, room(), limits, vertical, growth);
    if (size === undefined) return;
    set(size);
    event.preventDefault();
    event.stopPropagation();
  });
  requestAnimationFrame(draw); // what it divides may come after it
  return listen(model, { size: draw });
}

export default { render };
