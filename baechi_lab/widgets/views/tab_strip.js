// Tabs, and buttons that fold something: what a plain widget button cannot say to assistive technology. Traits: see panels/tabs.py.

/** The handles of sliders have no name of their own: that of their label; a text without one has that of its tooltip. @param {Element} bench */
function nameSliders(bench) {
  for (const handle of bench.querySelectorAll(".noUi-handle:not([aria-label])")) {
    const label = handle.closest(".widget-inline-hbox")?.querySelector("label")?.textContent;
    if (label) handle.setAttribute("aria-label", label);
  }
  for (const input of bench.querySelectorAll("input[title]:not([aria-label])")) {
    if (!input.closest(".widget-inline-hbox")?.querySelector("label")?.textContent) input.setAttribute("aria-label", String(input.getAttribute("title")));
  }
}

/** A row of checkboxes is one Tab stop. The title that a checkbox makes of its description, which is HTML here, goes: the name within
 * has a tooltip. @param {Element} bench */
function groupChoices(bench) {
  for (const choices of /** @type {NodeListOf<HTMLElement>} */ (bench.querySelectorAll(".bl-choices"))) {
    for (const titled of choices.querySelectorAll("[title*='<']")) titled.removeAttribute("title");
    rove(choices);
  }
}

/** The buttons of advice are one Tab stop: arrows go from one to the other. The second is seen only with the first. @param {Element} bench */
function groupAdvice(bench) {
  const buttons = /** @type {HTMLElement[]} */ ([...bench.querySelectorAll(".bl-one-advice button")]);
  buttons.forEach((button, k) => {
    if (k > 0) button.tabIndex = -1;
    if (button.dataset.roving) return;
    button.dataset.roving = "true";
    button.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = by === undefined ? undefined : buttons[k + by];
      if (!next?.offsetParent) return;
      next.focus();
      event.preventDefault();
      event.stopPropagation();
    });
  });
}

/** Mark the workbench as disconnected once its kernel is shut down: JupyterLab's widget manager does so after a restart only.
 * Front ends that do not show their kernel are left alone. Returns a function that stops.
 * @param {any} manager the widget manager @param {() => Element | null} bench @param {number} every milliseconds */
function watchKernel(manager, bench, every = 1000) {
  let lived = false;
  const watch = setInterval(() => {
    const kernel = manager?.kernel;
    const gone = !kernel || kernel.isDisposed || kernel.status === "dead";
    lived ||= !gone;
    if (lived && gone) {
      bench()?.classList.add("jupyter-widgets-disconnected");
      clearInterval(watch);
    }
  }, every);
  return () => clearInterval(watch);
}

/** Say that the kernel is busy while it leaves a person's click, key or change unanswered, as it does while a cell runs. Returns a
 * function that stops. @param {Model} model @param {HTMLElement} bench @param {number} patience milliseconds */
function watchAnswers(model, bench, patience = 2000) {
  const note = element("div", { class: "bl-unanswered", role: "status" });
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let late;
  const ask = () => {
    if (late !== undefined || bench.classList.contains("jupyter-widgets-disconnected")) return; // nobody would answer
    late = setTimeout(() => { note.textContent = "kernel busy: what you do here waits until it is free"; }, patience);
    model.send({ type: "ask" });
  };
  const answered = () => {
    clearTimeout(late);
    [late, note.textContent] = [undefined, ""];
  };
  const kinds = ["click", "change", "keydown"];
  bench.append(note);
  for (const kind of kinds) bench.addEventListener(kind, ask, true);
  model.on("msg:custom", answered);
  return () => {
    answered();
    note.remove();
    for (const kind of kinds) bench.removeEventListener(kind, ask, true);
    model.off("msg:custom", answered);
  };
}

const FOCUSABLE = `a[href], input, select, textarea, summary, [tabindex], ${STOPS}`;

/** Keep the place of a person who works with keys. A browser gives the focus to nothing when what has it is hidden, disabled or removed,
 * as "Cancel" is at the end of a computation. Here the nearest part of the same row gets it, or else of what is around that row; where the
 * parts of a row are replaced, that is the new one at the same place. Returns a function that stops. @param {HTMLElement} bench */
function keepFocus(bench) {
  /** @type {HTMLElement | null} */
  let last = null;
  /** @type {{box: HTMLElement, place: number}[]} what is around `last`, the smallest first, and the place of `last` in each */
  let around = [];
  const all = (/** @type {HTMLElement} */ box) => /** @type {HTMLElement[]} */ ([...box.querySelectorAll(FOCUSABLE)]);
  const canHaveIt = (/** @type {HTMLElement} */ one) => one.isConnected && !one.matches(":disabled") && one.checkVisibility({ visibilityProperty: true });
  const isStop = (/** @type {HTMLElement} */ one) => (one.tabIndex >= 0 || one.matches(STOPS)) && canHaveIt(one);
  const enter = (/** @type {FocusEvent} */ event) => {
    const now = /** @type {HTMLElement} */ (event.target);
    [last, around] = [now, []];
    for (let box = now; box !== bench && box.parentElement;) {
      box = box.parentElement;
      around.push({ box, place: all(box).indexOf(now) });
    }
  };
  // What is being removed loses the focus while it is still there. A person leaves what remains.
  const leave = (/** @type {FocusEvent} */ event) => queueMicrotask(() => {
    if (event.target === last && last && canHaveIt(last)) last = null;
  });
  const mend = () => {
    if (!last || canHaveIt(last)) return;
    const at = document.activeElement;
    const isLost = !at || at === document.body || at === last;
    last = null;
    if (!isLost) return;
    for (const { box, place } of around) {
      const near = all(box).map((one, k) => ({ one, far: Math.abs(k - place) })).filter(({ one }) => isStop(one));
      if (!box.isConnected || !near.length) continue;
      near.sort((a, b) => a.far - b.far)[0].one.focus();
      return;
    }
  };
  const changes = new MutationObserver(mend);
  changes.observe(bench, { childList: true, subtree: true, attributes: true, attributeFilter: ["class", "style", "hidden", "disabled"] });
  bench.addEventListener("focusin", enter);
  bench.addEventListener("focusout", leave);
  return () => {
    changes.disconnect();
    bench.removeEventListener("focusin", enter);
    bench.removeEventListener("focusout", leave);
  };
}

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  el.classList.add("bl-tabs");
  const list = element("div", { role: "tablist", class: "bl-tablist", "aria-label": "parts of the workbench" });
  const full = element("button", { type: "button", class: "bl-tab bl-full", title: "full screen, and back with Escape", "aria-label": "full screen", onclick: () => {
    if (document.fullscreenElement) document.exitFullscreen();
    else el.closest(".bl-workbench")?.requestFullscreen();
  } });
  el.replaceChildren(list, full);
  const mark = `bl-tab-${nextNumber()}`;
  const names = () => Object.keys(model.get("tabs"));

  function choose(name) {
    model.set("chosen", name);
    model.save_changes();
  }

  function draw() {
    list.replaceChildren(...Object.entries(model.get("tabs")).map(([name, hint]) =>
      element("button", { type: "button", role: "tab", class: "bl-tab", id: `${mark}-${name}`, title: hint, onclick: () => choose(name) }, name)));
    mark_chosen();
  }

  /** The chosen tab is the one Tab stop, and the panes say whose they are. */
  function mark_chosen() {
    for (const one of /** @type {NodeListOf<HTMLElement>} */ (list.querySelectorAll("[role='tab']"))) {
      const chosen = one.textContent === model.get("chosen");
      one.setAttribute("aria-selected", String(chosen));
      one.classList.toggle("bl-chosen", chosen);
      one.tabIndex = chosen ? 0 : -1;
    }
    const panes = el.closest(".bl-workbench")?.querySelector(".bl-panes");
    if (!panes) return;
    panes.id ||= `${mark}-panes`;
    panes.setAttribute("role", "tabpanel");
    panes.setAttribute("aria-labelledby", `${mark}-${model.get("chosen")}`);
    for (const one of list.children) one.setAttribute("aria-controls", panes.id);
  }

  list.addEventListener("keydown", (event) => {
    const all = names();
    const at = all.indexOf(model.get("chosen"));
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    const next = all[(to + all.length) % all.length];
    choose(next);
    /** @type {HTMLElement | null} */ (list.querySelector(`[id="${mark}-${next}"]`))?.focus();
    event.preventDefault();
    event.stopPropagation();
  });
  draw();
  const changes = new MutationObserver(() => {
    const bench = el.closest(".bl-workbench");
    if (!bench) return;
    nameSliders(bench);
    groupChoices(bench);
    groupAdvice(bench);
  });
  let unask = () => {};
  let unkeep = () => {};
  requestAnimationFrame(() => { // the panes may come after this
    mark_chosen();
    const bench = /** @type {HTMLElement | null} */ (el.closest(".bl-workbench"));
    if (!bench) return;
    keepKeys(bench);
    unask = watchAnswers(model, bench);
    unkeep = keepFocus(bench);
    nameSliders(bench);
    groupChoices(bench);
    groupAdvice(bench);
    changes.observe(bench, { childList: true, subtree: true });
  });
  const stop = listen(model, { tabs: draw, chosen: mark_chosen });
  const unwatch = watchKernel(/** @type {any} */ (model).widget_manager, () => el.closest(".bl-workbench"));
  return () => { stop(); unwatch(); unask(); unkeep(); changes.disconnect(); };
}

export default { render };
