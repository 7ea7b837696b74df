// Graph view: nested boxes, opened in place, coloured by device. Traits: see graph_view.py.

const MOST_PREVIEWS = 8; // devices whose buttons have room for what a move would change
/** Pixels by which Shift and an arrow move the picture. @type {Record<string, number[]>} */
const PAN = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };

function render({ model, el }) {
  /** @type {Transform} */
  const t = { x: 0, y: 0, k: 1 };
  let devices = model.get("devices");
  let colours = model.get("colors");
  let scene = readScene(model);
  let paint = readPaint(model, devices.length, scene.id.length);
  let heat = readHeat(model, scene.id.length);
  let marks = readMarks(model, scene.id.length);
  /** @type {ReturnType<typeof arrowPaths>} */
  let paths = [];
  let selected = new Set(model.get("selected"));
  let hovered = UNSEEN;
  let hoveredArrow = UNSEEN;
  let dim = readDim(model);
  let told = false; // that the first picture is drawn
  let fitted = false;
  let fittedFor = "";
  let untouched = true; // nobody has panned or zoomed since the last fit: a resize fits again
  let cursor = UNSEEN; // the box that arrows came to last
  let anchor = null; // a box that is being opened or closed, and where its upper left is on the screen

  const view = frame(el, "Graph", draw);
  view.stage.style.height = `${model.get("height")}px`;
  const crumbs = element("nav", { class: "bl-crumbs", "aria-label": "scopes around what is shown" });
  const list = element("div", { class: "bl-found", hidden: true });
  const heatKey = element("div", { class: "bl-heat-key", hidden: true });
  view.stage.append(crumbs, list, heatKey);
  const confirm = element("div", { class: "bl-confirm", role: "status" });
  const legend = element("div", { class: "bl-legend" });
  el.insertBefore(confirm, view.live);
  el.insertBefore(legend, view.live);

  function draw(context, width, height, theme) {
    if ((!fitted || (untouched && fittedFor !== `${width} ${height}`)) && scene.id.length) fit();
    const critical = Boolean(model.get("critical"));
    const drawn = drawScene(context, { scene, paint, heat, marks, dim, colours, theme, t, size: [width, height], paths, critical, hovered, hoveredArrow });
    drawRectangle(view, context, theme);
    if (!told) model.send({ type: "drawn" });
    told = true;
    Object.assign(view.canvas.dataset, {
      nodes: String(scene.id.length), drawn: String(drawn), frames_open: String(scene.frame.length), arrows: String(scene.source.length),
      critical: String(paint.fits && critical ? paint.criticalArrow.reduce((sum, one) => sum + one, 0) : 0),
      middle: worldAt(width / 2, height / 2).map(Math.round).join(" "), minimap: (minimapOf(scene, t, [width, height]) || []).slice(0, 4).join(" "),
      heat: heat.fits ? `${heat.by} ${heat.share.indexOf(1)}` : "",
      chosen: String(marks.chosen.reduce((sum, one) => sum + one, 0)),
    });
    describePlace();
  }

  // -- moving about --------------------------------------------------------------------------------

  /** @param {number[] | null} only */
  function fit(only = null) {
    const [x0, y0, x1, y1] = bounds(scene, only);
    if (view.width < 2) return;
    const most = only ? 1.3 : 1.5;
    t.k = Math.min((view.width - 24) / Math.max(x1 - x0, 1), (view.height - 40) / Math.max(y1 - y0, 1), most);
    t.x = view.width / 2 - ((x0 + x1) / 2) * t.k;
    t.y = (view.height + 12) / 2 - ((y0 + y1) / 2) * t.k;
    fitted = true;
    fittedFor = `${view.width} ${view.height}`;
    untouched = only === null;
    view.redraw();
  }

  /** Show boxes: as it is where they can be read, else as near as they fit. */
  function bring(targets) {
    const right = list.hidden ? view.width : Math.max(list.offsetLeft, view.width / 3); // beside the list of hits
    const well = (id) => {
      const [x0, y0, x1, y1] = extentOf(scene, id) || [0, 0, 0, 0];
      return t.k >= 0.55 && x0 * t.k + t.x > 0 && y0 * t.k + t.y > 24 && x1 * t.k + t.x < right && y1 * t.k + t.y < view.height;
    };
    if (!targets.length || targets.every(well)) return view.redraw();
    const [x0, y0, x1, y1] = bounds(scene, targets);
    const most = Math.min((right - 60) / Math.max(x1 - x0, 1), (view.height - 80) / Math.max(y1 - y0, 1));
    t.k = Math.min(Math.max(t.k, 0.8), most);
    t.x = right / 2 - ((x0 + x1) / 2) * t.k;
    t.y = view.height / 2 - ((y0 + y1) / 2) * t.k;
    untouched = false;
    return view.redraw();
  }

  function zoom(factor, x = view.width / 2, y = view.height / 2) {
    const k = Math.min(Math.max(t.k * factor, 0.02), 6);
    t.x = x - ((x - t.x) / t.k) * k;
    t.y = y - ((y - t.y) / t.k) * k;
    t.k = k;
    untouched = false;
    view.redraw();
  }

  /** @returns {[number, number]} */
  const worldAt = (x, y) => [(x - t.x) / t.k, (y - t.y) / t.k];

  function nodeAt(x, y) {
    const [wx, wy] = worldAt(x, y);
    for (let i = scene.id.length - 1; i >= 0; i -= 1) {
      if (Math.abs(wx - scene.x[i]) <= scene.width[i] / 2 + 1 / t.k && Math.abs(wy - scene.y[i]) <= scene.height[i] / 2 + 1 / t.k) return i;
    }
    return UNSEEN;
  }

  /** A frame whose title or border is at a point. */
  function frameTitleAt(x, y) {
    const node = frameAtPoint(scene, ...worldAt(x, y));
    if (node === UNSEEN) return UNSEEN;
    const [, top] = /** @type {number[]} */ (extentOf(scene, node));
    return y <= Math.max(top * t.k + t.y, 0) + Math.max(TITLE * t.k, 14) ? node : UNSEEN;
  }

  /** Where a click on the minimap leads. */
  function toMinimap(x, y) {
    const map = minimapOf(scene, t, [view.width, view.height]);
    if (!map) return false;
    const [left, top, w, h, x0, y0, scale] = map;
    if (x < left - 4 || y < top - 4 || x > left + w + 4 || y > top + h + 4) return false;
    t.x = view.width / 2 - (x0 + (x - left) / scale) * t.k;
    t.y = view.height / 2 - (y0 + (y - top) / scale) * t.k;
    untouched = false;
    view.redraw();
    return true;
  }

  // -- what is said --------------------------------------------------------------------------------

  let crumbsFor = "";
  /** The scopes around the selection, or those around the middle of the picture that fill more than half of its width or height. */
  function describePlace() {
    const first = [...selected].find((id) => scene.at.has(id));
    const middle = frameAtPoint(scene, ...worldAt(view.width / 2, view.height / 2));
    const isFilling = (/** @type {number} */ id) => {
      const [left, top, right, bottom] = /** @type {number[]} */ (extentOf(scene, id));
      return (right - left) * t.k > view.width / 2 || (bottom - top) * t.k > view.height / 2;
    };
    const path = first !== undefined ? framesAround(scene, first) : middle !== UNSEEN ? [...framesAround(scene, middle), middle].filter(isFilling) : [];
    const key = `${path} ${scene.frame.length}`;
    if (key === crumbsFor) return;
    crumbsFor = key;
    const names = path.map((id) => scene.frameLabels[scene.frameAt.get(id) ?? 0]);
    crumbs.hidden = !path.length;
    crumbs.replaceChildren(button("graph", "show the whole graph (0)", () => fit()),
      ...path.flatMap((id, k) => ["›", button(names[k], `show ${titleOf(scene, id)}`, () => fit([id]))]));
  }

  function describeSelection() {
    const here = [...selected].map((id) => scene.at.get(id)).filter((i) => i !== undefined);
    const selectionText = model.get("selection_text");
    moveButtons.forEach((b) => {
      b.disabled = here.length === 0;
      const [change, sentence] = (here.length && model.get("previews")[b.dataset.device]) || ["", ""];
      b.title = here.length ? `move ${selectionText} to ${b.dataset.device}${sentence ? `: ${sentence}` : ""}` : `select what to move to ${b.dataset.device}`;
      b.querySelector(".bl-preview").textContent = change;
    });
    openButton.disabled = !here.some((i) => scene.kind[i] !== OP_KIND);
    closeButton.disabled = here.length === 0;
    confirm.textContent = model.get("status");
    confirm.hidden = !confirm.textContent;
    legend.hidden = here.length > 0; // the line below the picture says one or the other
    view.live.hidden = !legend.hidden;
    legend.replaceChildren(...graphKeys(paint, colours, Boolean(model.get("critical"))));
    if (!here.length) return view.say("");
    const whole = here.length === 1 && marks.chosen[here[0]] === scene.size[here[0]];
    const about = whole
      ? factsOf(scene, paint, devices, here[0]).slice(0, -1).filter((f) => f[1]).map(([a, b]) => `${a} ${b}`).join(" · ")
      : `in ${here.length} ${here.length === 1 ? "box" : "boxes"}, ${formatTime(model.get("chosen_us"))}`;
    return view.say(`Selected: ${selectionText} · ${about}`);
  }

  /** Results of a search as a list; what is found is not selected. */
  function listFound() {
    const found = model.get("found");
    list.hidden = !found.text;
    if (list.hidden) return;
    const total = found.total;
    const head = element("div", { class: "bl-found-head" }, total ? `${opsInWords(total)} match${total === 1 ? "es" : ""} “${found.text}”` : `no op's name contains “${found.text}”`);
    if (total) {
      const count = found.moving === total ? opsInWords(total) : `${opsInWords(found.moving)} with their groups`;
      head.append(button(`Select ${count}`, "select what is found, and what moves along with it", () => model.send({ type: "select_found" })));
    }
    head.append(button("×", "close the list", () => { search.value = ""; model.send({ type: "search", text: "" }); }));
    const rows = found.rows.map(([op, name], k) => element("button", {
      type: "button", class: "bl-row", "aria-current": String(k === found.at), title: name, onclick: () => model.send({ type: "go", op }),
    }, name));
    if (total > found.rows.length) rows.push(element("div", { class: "bl-row" }, `and ${(total - found.rows.length).toLocaleString("en")} more`));
    list.replaceChildren(head, element("div", { class: "bl-rows" }, ...rows));
    list.querySelector("[aria-current='true']")?.scrollIntoView({ block: "nearest" });
  }

  // -- selection and commands ----------------------------------------------------------------------

  function select(ids) {
    selected = new Set(ids);
    model.set("selected", [...selected].sort((a, b) => a - b));
    model.save_changes();
    view.redraw();
  }

  function move(device) {
    if (selected.size && device < devices.length) model.send({ type: "move", device, nodes: [...selected].sort((a, b) => a - b) });
  }

  function send(type, nodes) {
    const box = nodes.length ? extentOf(scene, nodes[0]) : null;
    anchor = box ? { id: nodes[0], x: box[0] * t.k + t.x, y: box[1] * t.k + t.y } : null;
    untouched = untouched && !anchor;
    model.send({ type, nodes });
  }

  function step(by) {
    const order = [...scene.id.keys()].sort((a, b) => scene.x[a] - scene.x[b] || scene.y[a] - scene.y[b]);
    const now = order.findIndex((i) => selected.has(scene.id[i]));
    const next = order[(now + by + order.length) % order.length];
    if (next === undefined) return;
    select([scene.id[next]]);
    bring([scene.id[next]]);
  }

  /** Select the nearest box in a direction from the selected one; without one, the box farthest against it. */
  function stepTowards(dx, dy) {
    const from = scene.id.indexOf(cursor);
    const next = boxTowards(scene, from >= 0 && selected.has(cursor) ? from : scene.id.findIndex((id) => selected.has(id)), dx, dy);
    if (next === UNSEEN) return;
    cursor = scene.id[next]; // a box is selected with its whole group: where one was is not seen in that
    select([scene.id[next]]);
    bring([scene.id[next]]);
  }

  function hover(x, y) {
    const now = nodeAt(x, y);
    const arrow = now === UNSEEN ? arrowAt(scene, ...worldAt(x, y), 6 / t.k) : UNSEEN;
    if (now !== UNSEEN) showTooltip(view, x, y, scene.names[now] || "graph", [...(heat.fits ? [[heat.by, heat.texts[now]]] : []), ...factsOf(scene, paint, devices, now)]);
    else if (arrow !== UNSEEN) {
      showTooltip(view, x, y, `${titleOf(scene, scene.source[arrow])} → ${titleOf(scene, scene.target[arrow])}`, arrowFacts(scene, paint, arrow));
    } else showTooltip(view, 0, 0, "", []);
    if (now === hovered && arrow === hoveredArrow) return;
    [hovered, hoveredArrow] = [now, arrow];
    view.redraw();
  }

  /** The button of the device below the pointer, while a box is dragged. */
  function deviceBelow(event) {
    const button = document.elementFromPoint(event.clientX, event.clientY)?.closest(".bl-moves button");
    return moveButtons.indexOf(button);
  }

  function carry(event) {
    const below = deviceBelow(event);
    moveButtons.forEach((b, d) => b.classList.toggle("bl-drop", d === below));
    view.canvas.style.cursor = "grabbing";
  }

  gestures(view, {
    grab: (x, y) => {
      const node = nodeAt(x, y);
      return node !== UNSEEN && selected.has(scene.id[node]);
    },
    carry,
    drop: (event) => {
      const below = event ? deviceBelow(event) : UNSEEN;
      moveButtons.forEach((b) => b.classList.remove("bl-drop"));
      view.canvas.style.cursor = "";
      if (below >= 0) move(below);
    },
    move: (dx, dy, event) => {
      untouched = false;
      if (toMinimap(...pointer(view, event))) return;
      t.x += dx;
      t.y += dy;
    },
    hover,
    click: (x, y, event) => {
      const more = event.shiftKey || event.ctrlKey || event.metaKey;
      if (toMinimap(x, y)) return undefined;
      const node = nodeAt(x, y);
      const id = node === UNSEEN ? frameTitleAt(x, y) : scene.id[node];
      if (id === UNSEEN) return more ? undefined : select([]);
      if (!more) return select([id]);
      const next = new Set(selected);
      if (!next.delete(id)) next.add(id);
      return select([...next]);
    },
    rectangle: (x0, y0, x1, y1, event) => {
      const inside = [];
      for (let i = 0; i < scene.id.length; i += 1) {
        const [x, y] = [scene.x[i] * t.k + t.x, scene.y[i] * t.k + t.y];
        if (x >= x0 && x <= x1 && y >= y0 && y <= y1) inside.push(scene.id[i]);
      }
      select(event.ctrlKey || event.metaKey ? [...selected, ...inside] : inside);
    },
  });
  view.canvas.addEventListener("dblclick", (event) => {
    const [x, y] = pointer(view, event);
    const node = nodeAt(x, y);
    if (node !== UNSEEN && scene.kind[node] !== OP_KIND) {
      select([]); // by the first click: all that the box shows would be selected
      send("open", [scene.id[node]]);
    }
    if (node !== UNSEEN) return undefined;
    const title = frameTitleAt(x, y);
    return title === UNSEEN ? undefined : send("close", [title]);
  });
  view.canvas.addEventListener("wheel", (event) => {
    if (!view.wantsWheel(event)) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.0015), ...pointer(view, event));
  }, { passive: false });

  const chosen = () => [...selected].sort((a, b) => a - b);
  const keys = {
    ArrowLeft: () => stepTowards(-1, 0), ArrowRight: () => stepTowards(1, 0), ArrowUp: () => stepTowards(0, -1), ArrowDown: () => stepTowards(0, 1),
    "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: () => fit(), Escape: () => select([]),
    n: () => step(1), p: () => step(-1), c: () => toggleCritical(),
    Enter: () => send("open", chosen()), Backspace: () => send("close", chosen()),
  };
  view.canvas.addEventListener("keydown", (event) => {
    const command = event.ctrlKey || event.metaKey;
    if (command && event.key.toLowerCase() === "z") model.send({ type: event.shiftKey ? "redo" : "undo" });
    else if (command && event.key.toLowerCase() === "y") model.send({ type: "redo" });
    else if (!command && /^[1-9]$/.test(event.key)) move(Number(event.key) - 1);
    else if (event.shiftKey && PAN[event.key]) {
      t.x += PAN[event.key][0];
      t.y += PAN[event.key][1];
      untouched = false;
    } else if (!command && keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
    event.stopPropagation();
    view.redraw();
  });

  // -- toolbar -------------------------------------------------------------------------------------

  const search = /** @type {HTMLInputElement} */ (element("input", {
    type: "search", placeholder: "search ops", "aria-label": "search ops by name",
  }));
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => model.send({ type: "search", text: search.value }), 250);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    clearTimeout(typing);
    model.send({ type: "search", text: search.value, next: true });
  });
  const openButton = button("Open", "show what is inside the selected boxes (Enter, or double-click)", () => send("open", chosen()));
  const closeButton = button("Close", "fold the frame around the selected boxes (Backspace, or double-click its title)", () => send("close", chosen()));
  const allButton = button("Open all", "open every box one level further, as many as can be drawn", () => { fitted = false; model.send({ type: "open_all" }); });
  const noneButton = button("Overview", "back to the first picture", () => { fitted = false; model.send({ type: "overview" }); });
  const criticalButton = button("Critical path", "mark the ops that determine the makespan, and the tensors between them; where no marked arrow leads to an op, its device was busy with the op before (c)", () => toggleCritical());
  const fitButton = button("Whole", "show the whole graph (0)", () => fit());
  let moveButtons = [];
  const moves = element("span", { class: "bl-group bl-moves" });

  function toggleCritical() {
    model.set("critical", !model.get("critical"));
    model.save_changes();
  }

  function devicesChanged() {
    devices = model.get("devices");
    colours = model.get("colors");
    moveButtons = devices.map((name, d) => {
      const swatch = element("span", { class: "bl-swatch", style: `background:${colours[d]}` });
      const moveButton = button("", "", () => move(d));
      moveButton.append(swatch, name, element("span", { class: "bl-preview" }));
      moveButton.dataset.device = name;
      return moveButton;
    });
    requestAnimationFrame(() => rove(view.toolbar));
    moves.replaceChildren(...(devices.length ? [element("span", {}, "Move to"), ...moveButtons] : []));
    const isMany = devices.length > MOST_PREVIEWS;
    moves.classList.toggle("bl-many", isMany); // their tooltips have what a move would change
    view.tail.classList.toggle("bl-wide", isMany); // "Table" stands beside their lines, and not alone on the next
    repaint();
  }

  function repath() {
    paths = arrowPaths(scene, paint, Boolean(model.get("critical")));
    view.redraw();
  }

  function repaint() {
    paint = readPaint(model, devices.length, scene.id.length);
    repath();
    describeSelection();
  }

  const heatBy = chooser("Colour", "what the boxes' colours mean: their devices, or what they cost or cause", (value) => {
    model.set("heat_by", value);
    model.save_changes();
  });

  function reheat() {
    heat = readHeat(model, scene.id.length);
    heatBy.offer([["", "device"], ...model.get("heats").map((/** @type {string} */ name) => [name, name])], model.get("heat_by"));
    heatKey.hidden = !heat.fits;
    heatKey.title = heat.meaning;
    heatKey.replaceChildren(...heatKeys(heat));
    view.tabulate();
    view.redraw();
  }

  function rebuild() {
    scene = readScene(model);
    reheat();
    marks = readMarks(model, scene.id.length);
    [hovered, hoveredArrow, crumbsFor] = [UNSEEN, UNSEEN, ""];
    showTooltip(view, 0, 0, "", []);
    // What was opened or closed stays where it was on the screen.
    const box = anchor ? extentOf(scene, anchor.id) : null;
    if (box) {
      t.x = anchor.x - box[0] * t.k;
      t.y = anchor.y - box[1] * t.k;
    } else if (untouched) fitted = false;
    anchor = null;
    repaint();
    view.tabulate();
  }

  view.toolbar.append(search, fitButton, openButton, closeButton, allButton, noneButton, criticalButton, heatBy.whole, view.tail);
  view.tail.prepend(moves);
  const place = (i) => [scene.names[i] || "graph", ...factsOf(scene, paint, devices, i).slice(0, 3).map(([, value]) => value), ...(heat.fits ? [heat.texts[i]] : [])];
  view.describe(
    "The graph as nested boxes, coloured by device; what is selected is told below it.",
    {
      "← → ↑ ↓": "select the next box in that direction", "Shift with an arrow": "move the picture", Enter: "open the selected boxes",
      Backspace: "close the frame around them", "1 to 9": "move the selection to that device", "n, p": "select the next, the previous box",
      "+, -": "zoom", 0: "show everything", c: "mark the critical path", Escape: "select nothing", "Ctrl+Z, Ctrl+Y": "undo, redo", "?": "show or hide these keys",
    },
    () => ({ caption: "Boxes that are drawn", head: ["box", "holds or type", "device", "time", ...(heat.fits ? [heat.by] : [])], rows: [...scene.id.keys()].map(place) }));
  devicesChanged();
  reheat();
  listFound();
  rove(view.toolbar);
  const pressed = () => criticalButton.setAttribute("aria-pressed", String(Boolean(model.get("critical"))));
  pressed();

  const stop = listen(model, {
    nodes: rebuild,
    paint: repaint,
    heat: reheat,
    heats: reheat,
    heat_by: reheat,
    devices: devicesChanged,
    colors: devicesChanged,
    selected: () => { selected = new Set(model.get("selected")); describeSelection(); view.redraw(); },
    marks: () => { marks = readMarks(model, scene.id.length); describeSelection(); view.redraw(); },
    critical: () => { pressed(); repath(); describeSelection(); },
    status: describeSelection,
    previews: describeSelection,
    selection_text: describeSelection,
    chosen_us: describeSelection,
    found: listFound,
    dim: () => { dim = readDim(model); view.redraw(); },
    focus: () => bring(model.get("focus")),
    height: () => { view.stage.style.height = `${model.get("height")}px`; },
  });
  return () => { stop(); view.close(); clearTimeout(typing); };
}

export default { render };
