// Texts, buttons and inputs as plain elements. Traits: see controls_view.py.

/** @typedef {{id: string, kind: string, label: string, hint: string, disabled: boolean, value?: any, pressed?: boolean, options?: string[], children?: ControlNode[]}} ControlNode */

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  el.classList.add("bl-view", "bl-workbench-controls");

  /** @param {ControlNode} node @param {any} [value] */
  const send = (node, value) => model.send({ type: "set", id: node.id, value });

  /** @param {ControlNode} node @returns {HTMLElement} */
  function inputOf(node) {
    const shared = { "data-id": node.id, "aria-label": node.label || node.hint, disabled: node.disabled };
    if (node.kind === "choice") {
      const select = /** @type {HTMLSelectElement} */ (element("select", shared, ...(node.options ?? []).map((text) => element("option", {}, text))));
      select.selectedIndex = node.value ?? -1;
      select.onchange = () => send(node, select.selectedIndex);
      return select;
    }
    const input = /** @type {HTMLInputElement} */ (element("input", { ...shared, type: "text", value: node.value }));
    input.onchange = () => send(node, input.value);
    return input;
  }

  /** @param {ControlNode} node @returns {HTMLElement} */
  function drawn(node) {
    if (node.children) return element("div", { class: `bl-${node.kind}` }, ...node.children.map(drawn));
    if (node.kind === "text") {
      const text = element("div", { class: "bl-text" });
      text.innerHTML = node.value;
      return text;
    }
    if (node.kind === "button") {
      const one = button(node.label, node.hint, () => send(node));
      Object.assign(one, { disabled: node.disabled });
      one.dataset.id = node.id;
      if (node.pressed !== undefined) one.setAttribute("aria-pressed", String(node.pressed));
      return one;
    }
    return element("label", { class: "bl-control", title: node.hint }, element("span", {}, node.label), inputOf(node));
  }

  function draw() {
    const root = /** @type {Document | ShadowRoot} */ (el.getRootNode());
    const focused = /** @type {HTMLElement | null} */ (root.activeElement)?.dataset?.id;
    const tree = model.get("tree");
    el.replaceChildren(...(tree.kind ? [drawn(tree)] : []));
    if (focused) /** @type {HTMLElement | null} */ (el.querySelector(`[data-id="${focused}"]`))?.focus();
  }
  let pending = 0;
  const soon = () => { pending ||= requestAnimationFrame(() => { pending = 0; draw(); }); };
  draw();
  const stop = listen(model, { tree: soon });
  return () => { stop(); cancelAnimationFrame(pending); };
}

export default { render };
