// A button that puts the trait `text` on the clipboard; without a text it is disabled.

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "jupyter-button widget-button bl-copy";
  button.textContent = String(model.get("label"));
  button.addEventListener("click", async () => {
    const text = String(model.get("text"));
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch (error) {
      // Without a secure connection browsers give no clipboard: select the text the old way.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      button.textContent = document.execCommand("copy") ? "Copied" : `Not copied: ${error instanceof Error ? error.message : error}`;
      area.remove();
    }
    setTimeout(() => { button.textContent = String(model.get("label")); }, 1500);
  });
  const enable = () => { button.disabled = !model.get("text"); };
  enable();
  el.replaceChildren(button);
  return listen(model, { text: enable });
}

export default { render };
