// A button that folds what follows it away and back, and says so. Traits: see folder.py.

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  el.classList.add("bl-folder");
  const head = element("button", { type: "button", class: "bl-fold", onclick: () => {
    model.set("unfolded", !model.get("unfolded"));
    model.save_changes();
  } });
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
  return listen(model, { unfolded: draw, title: draw });
}

export default { render };
