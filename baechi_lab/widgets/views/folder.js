// A button that folds what follows it away and back, and says so. Traits: see folder.py.

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  el.classList.add("bl-folder");
  const head = element("button", { type: "button", class: "bl-fold", onclick: () => {
    model.set("unfolded", !model.get("unfolded"));
    model.save_changes();
    if (model.get("unfolded")) sizes.observe(el.parentElement ?? el);
  } });
  // What was unfolded at the lower edge of the setting would lie below it.
  const sizes = new ResizeObserver(([entry]) => {
    const pane = el.closest(".bl-setting");
    if (pane && entry.target.querySelector(":scope > .bl-inside")?.clientHeight) {
      const [part, whole] = [entry.target.getBoundingClientRect(), pane.getBoundingClientRect()];
      pane.scrollTop += Math.max(Math.min(part.bottom - whole.bottom, part.top - whole.top), 0);
      sizes.disconnect();
    }
  });
  el.replaceChildren(head);
  const draw = () => {
    const open = Boolean(model.get("unfolded"));
    head.textContent = `${open ? "▾" : "▸"} ${model.get("title")}`;
    head.title = model.get("hint");
    head.setAttribute("aria-label", model.get("title"));
    head.setAttribute("aria-expanded", String(open));
    head.classList.toggle("bl-tab", Boolean(model.get("in_strip")));
    const inside = el.parentElement?.querySelector(":scope > .bl-inside");
    if (inside) {
      inside.id ||= `bl-inside-${nextNumber()}`;
      head.setAttribute("aria-controls", inside.id);
    }
  };
  draw();
  requestAnimationFrame(draw); // what it folds may come after it
  const stop = listen(model, { unfolded: draw, title: draw });
  return () => {
    stop();
    sizes.disconnect();
  };
}

export default { render };
