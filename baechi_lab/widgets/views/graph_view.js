// Graph view: visible nodes of the op tree, coloured by device, sized by time. Traits: see graph_view.py.

function render({ model, el }) {
  /** @type {Transform} */
  const t = { x: 0, y: 0, k: 1 };
  let devices = model.get("devices");
  let colours = model.get("colors");
  let scene = readScene(model);
  let paint = readPaint(model, devices.length, scene.id.length);
  let groups = groupByColour(scene, paint, colours);
  let selected = new Set(model.get("selected"));
  let hovered = UNSEEN;
  let dim = readDim(model);
  let fitted = false;
  let fittedFor = 0;
  let untouched = true; // nobody has panned or zoomed since the last fit: a resize fits again

  const view = frame(el, "Graph", draw);
  view.stage.style.height = `${model.get("height")}px`;

  // -- drawing -------------------------------------------------------------------------------------

  /** Long edges, and those that run on to the next band as a line of text does, are drawn faintly. */
  function edgePath(context, edges, width, height, faint = 0.22) {
    const long = strokeEdges(context, scene, t, edges, [width, height], true);
    if (!long.length) return;
    context.globalAlpha = faint;
    strokeEdges(context, scene, t, long, [width, height], false);
    context.globalAlpha = 1;
  }

  function onScreen(i, width, height) {
    const x = scene.x[i] * t.k + t.x;
    const y = scene.y[i] * t.k + t.y;
    const w = (scene.width[i] * t.k) / 2 + 1;
    const h = (scene.height[i] * t.k) / 2 + 1;
    return x + w > 0 && x - w < width && y + h > 0 && y - h < height;
  }

  function box(i) {
    const w = Math.max(scene.width[i] * t.k, 1.5);
    const h = Math.max(scene.height[i] * t.k, 1.5);
    return [scene.x[i] * t.k + t.x - w / 2, scene.y[i] * t.k + t.y - h / 2, w, h];
  }

  function drawNodes(context, width, height, theme) {
    const shown = [];
    const faint = [];
    const dimmed = dim.length === scene.id.length;
    groups.nodes.forEach((members, d) => {
      context.fillStyle = paint.fits ? colours[d] : theme.edge;
      context.beginPath();
      for (const i of members) {
        if (!onScreen(i, width, height)) continue;
        shown.push(i);
        if (dimmed && dim[i]) faint.push(i);
        else context.rect(...box(i));
      }
      context.fill();
    });
    context.globalAlpha = 0.14;
    for (const i of faint) {
      context.fillStyle = colours[paint.fits ? paint.device[i] % colours.length : 0];
      context.fillRect(...box(i));
    }
    context.globalAlpha = 1;
    if (!paint.fits) return shown;
    for (const [i, share] of paint.shares) {
      if (!onScreen(i, width, height) || (dimmed && dim[i])) continue;
      let [x, y, w, h] = box(i);
      share.forEach((part, d) => {
        context.fillStyle = colours[d];
        context.fillRect(x, y, w * part, h);
        x += w * part;
      });
    }
    return shown;
  }

  function outline(context, nodes, colour, lineWidth, grow) {
    context.strokeStyle = colour;
    context.lineWidth = lineWidth;
    context.beginPath();
    for (const i of nodes) {
      const [x, y, w, h] = box(i);
      context.rect(x - grow, y - grow, w + 2 * grow, h + 2 * grow);
    }
    context.stroke();
  }

  function labels(context, shown, theme) {
    if (t.k < 0.9 || shown.length > 700) return;
    const size = Math.min(9 + t.k, 12);
    context.font = `${size}px ${theme.font}`;
    context.textAlign = "center";
    context.textBaseline = "top";
    context.fillStyle = theme.text;
    context.strokeStyle = theme.background;
    context.lineWidth = 3;
    context.lineJoin = "round";
    for (const i of shown) {
      const room = 62 * t.k;
      const text = shortened(scene.labels[i], room, size);
      if (!text) continue;
      const [x, y] = [scene.x[i] * t.k + t.x, (scene.y[i] + scene.height[i] / 2) * t.k + t.y + 5];
      context.strokeText(text, x, y); // a halo, so that the text can be read over edges
      context.fillText(text, x, y);
    }
  }

  function draw(context, width, height, theme) {
    if ((!fitted || (untouched && fittedFor !== width)) && scene.id.length) fit();
    context.fillStyle = theme.background;
    context.fillRect(0, 0, width, height);
    const showCritical = model.get("critical");
    const marked = new Set([...selected].map((id) => scene.at.get(id)).filter((i) => i !== undefined));
    if (hovered !== UNSEEN) marked.add(hovered);
    context.lineWidth = Math.min(Math.max(t.k * 0.8, 0.35), 1);
    context.strokeStyle = theme.edge;
    edgePath(context, groups.plain, width, height);
    if (!showCritical) edgePath(context, groups.critical.filter((e) => paint.device[scene.source[e]] === paint.device[scene.target[e]]), width, height);
    context.strokeStyle = theme.crossing;
    edgePath(context, groups.crossing, width, height, 0.3);
    if (!showCritical) edgePath(context, groups.critical.filter((e) => paint.device[scene.source[e]] !== paint.device[scene.target[e]]), width, height);
    if (showCritical) {
      context.lineWidth = 3;
      context.strokeStyle = theme.danger;
      edgePath(context, groups.critical, width, height, 0.6);
    }
    if (marked.size && marked.size < 200) {
      context.lineWidth = 1.6;
      for (const [edges, colour] of [[groups.plain, theme.text], [groups.crossing, theme.crossing], [groups.critical, theme.text]]) {
        context.strokeStyle = colour;
        edgePath(context, edges.filter((e) => marked.has(scene.source[e]) || marked.has(scene.target[e])), width, height, 1);
      }
    }
    const shown = drawNodes(context, width, height, theme);
    if (t.k > 0.3) outline(context, shown.filter((i) => scene.kind[i] !== OP_KIND), theme.text, 1, 0);
    if (showCritical && paint.fits) outline(context, shown.filter((i) => paint.critical[i]), theme.danger, 2, 1.5);
    outline(context, shown.filter((i) => selected.has(scene.id[i])), theme.accent, 2.5, 3);
    if (hovered !== UNSEEN) outline(context, [hovered], theme.accent, 1, 2);
    labels(context, shown, theme);
    drawRectangle(view, context, theme);
    view.canvas.dataset.nodes = String(scene.id.length);
  }

  // -- moving about --------------------------------------------------------------------------------

  function fit(only = null) {
    const [x0, y0, x1, y1] = bounds(scene, only);
    if (view.width < 2) return;
    const most = only ? 1.2 : 3;
    t.k = Math.min((view.width - 40) / Math.max(x1 - x0, 1), (view.height - 40) / Math.max(y1 - y0, 1), most);
    t.x = view.width / 2 - ((x0 + x1) / 2) * t.k;
    t.y = view.height / 2 - ((y0 + y1) / 2) * t.k;
    fitted = true;
    fittedFor = view.width;
    untouched = only === null;
    view.redraw();
  }

  /** Show nodes: as it is where they can be seen well, else closer, but no more of the empty outside than needed. */
  function bring(targets) {
    const well = (i) => {
      const [x, y, w, h] = box(i);
      return t.k >= 0.5 && x > 0 && y > 0 && x + w < view.width && y + h < view.height;
    };
    if (targets.every(well)) return view.redraw();
    fit(targets);
    const [x0, y0, x1, y1] = bounds(scene);
    const inside = (offset, low, high, size) => {
      const [least, most] = [size - 20 - high * t.k, 20 - low * t.k];
      return least <= most ? Math.min(Math.max(offset, least), most) : size / 2 - ((low + high) / 2) * t.k;
    };
    t.x = inside(t.x, x0, x1, view.width);
    t.y = inside(t.y, y0, y1, view.height);
    return view.redraw();
  }

  function zoom(factor, x = view.width / 2, y = view.height / 2) {
    const k = Math.min(Math.max(t.k * factor, 0.005), 12);
    t.x = x - ((x - t.x) / t.k) * k;
    t.y = y - ((y - t.y) / t.k) * k;
    t.k = k;
    untouched = false;
    view.redraw();
  }

  function nodeAt(x, y) {
    for (let i = scene.id.length - 1; i >= 0; i -= 1) {
      const [left, top, w, h] = box(i);
      if (x >= left - 1 && x <= left + w + 1 && y >= top - 1 && y <= top + h + 1) return i;
    }
    return UNSEEN;
  }

  // -- what is said about a node -------------------------------------------------------------------

  function describeSelection() {
    const here = [...selected].map((id) => scene.at.get(id)).filter((i) => i !== undefined);
    moveButtons.forEach((b) => { b.disabled = here.length === 0; });
    openButton.disabled = !here.some((i) => scene.kind[i] !== OP_KIND);
    closeButton.disabled = here.length === 0;
    if (here.length === 1) {
      const i = here[0];
      const said = factsOf(scene, paint, devices, i).slice(0, -1).filter((f) => f[1]).map(([a, b]) => `${a} ${b}`).join(" · ");
      return view.say(`${scene.names[i] || "graph"}: ${said}`);
    }
    const time = here.reduce((sum, i) => sum + scene.time[i], 0);
    const ops = here.reduce((sum, i) => sum + scene.size[i], 0);
    return view.say(here.length ? `${here.length} nodes selected (${ops} ops, ${formatTime(time)})` : model.get("status"));
  }

  // -- selection and commands ----------------------------------------------------------------------

  function select(ids) {
    selected = new Set(ids);
    model.set("selected", [...selected]);
    model.save_changes();
    describeSelection();
    view.redraw();
  }

  function move(device) {
    if (selected.size && device < devices.length) model.send({ type: "move", device, nodes: [...selected] });
  }

  function open(node) {
    if (scene.kind[node] !== OP_KIND) model.send({ type: "open", nodes: [scene.id[node]] });
    else model.send({ type: "close", nodes: [scene.id[node]] });
  }

  function step(by) {
    const order = [...scene.id.keys()].sort((a, b) => scene.x[a] - scene.x[b] || scene.y[a] - scene.y[b]);
    const now = order.findIndex((i) => selected.has(scene.id[i]));
    const next = order[(now + by + order.length) % order.length];
    if (next === undefined) return;
    select([scene.id[next]]);
    bring([next]);
  }

  gestures(view, {
    move: (dx, dy) => { t.x += dx; t.y += dy; untouched = false; },
    hover: (x, y) => {
      const now = nodeAt(x, y);
      if (now !== UNSEEN) showTooltip(view, x, y, scene.names[now] || "graph", factsOf(scene, paint, devices, now));
      else showTooltip(view, 0, 0, "", []);
      if (now !== hovered) {
        hovered = now;
        view.redraw();
      }
    },
    click: (x, y, event) => {
      const node = nodeAt(x, y);
      if (node === UNSEEN) return event.shiftKey || event.ctrlKey || event.metaKey ? undefined : select([]);
      const id = scene.id[node];
      if (!(event.shiftKey || event.ctrlKey || event.metaKey)) return select([id]);
      const next = new Set(selected);
      if (!next.delete(id)) next.add(id);
      return select(next);
    },
    rectangle: (x0, y0, x1, y1, event) => {
      const inside = [];
      for (let i = 0; i < scene.id.length; i += 1) {
        const x = scene.x[i] * t.k + t.x;
        const y = scene.y[i] * t.k + t.y;
        if (x >= x0 && x <= x1 && y >= y0 && y <= y1) inside.push(scene.id[i]);
      }
      select(event.ctrlKey || event.metaKey ? [...selected, ...inside] : inside);
    },
  });
  view.canvas.addEventListener("dblclick", (event) => {
    const node = nodeAt(...pointer(view, event));
    if (node !== UNSEEN) open(node);
  });
  view.canvas.addEventListener("wheel", (event) => {
    if (!view.wantsWheel(event)) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.0015), ...pointer(view, event));
  }, { passive: false });

  const keys = {
    ArrowLeft: () => { t.x += 40; }, ArrowRight: () => { t.x -= 40; }, ArrowUp: () => { t.y += 40; }, ArrowDown: () => { t.y -= 40; },
    "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: () => fit(), Escape: () => select([]),
    n: () => step(1), p: () => step(-1), c: () => toggleCritical(),
    Enter: () => model.send({ type: "open", nodes: [...selected] }),
    Backspace: () => model.send({ type: "close", nodes: [...selected] }),
  };
  view.canvas.addEventListener("keydown", (event) => {
    const command = event.ctrlKey || event.metaKey;
    if (command && event.key.toLowerCase() === "z") model.send({ type: event.shiftKey ? "redo" : "undo" });
    else if (command && event.key.toLowerCase() === "y") model.send({ type: "redo" });
    else if (!command && /^[1-9]$/.test(event.key)) move(Number(event.key) - 1);
    else if (!command && keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
    event.stopPropagation();
    view.redraw();
  });

  // -- toolbar -------------------------------------------------------------------------------------

  const search = /** @type {HTMLInputElement} */ (element("input", {
    type: "search", placeholder: "search ops by name", "aria-label": "search ops by name",
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
  const openButton = button("Open", "show what is inside the selected nodes (Enter, or double-click)", () => model.send({ type: "open", nodes: [...selected] }));
  const closeButton = button("Close", "fold the selected nodes into their scope or group (Backspace)", () => model.send({ type: "close", nodes: [...selected] }));
  const allButton = button("Open all", "show as many nodes as can be drawn fluidly", () => model.send({ type: "open_all" }));
  const noneButton = button("Overview", "back to the first picture", () => model.send({ type: "overview" }));
  const criticalButton = button("Critical path", "mark the ops and transfers that determine the makespan (c)", () => toggleCritical());
  const fitButton = button("Fit", "show the whole graph (0)", () => fit());
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
      const made = button("", `move the selected ops to ${name}${d < 9 ? ` (key ${d + 1})` : ""}`, () => move(d));
      made.append(swatch, name);
      made.dataset.device = name;
      return made;
    });
    moves.replaceChildren(element("span", {}, model.get("editable") ? "Move selection to" : "Devices"), ...moveButtons);
    repaint();
  }

  function repaint() {
    paint = readPaint(model, devices.length, scene.id.length);
    groups = groupByColour(scene, paint, colours);
    describeSelection();
    view.redraw();
  }

  function rebuild() {
    const middle = scene.at.size;
    scene = readScene(model);
    hovered = UNSEEN;
    showTooltip(view, 0, 0, "", []);
    repaint();
    if (middle !== scene.at.size) fitted = false;
    view.redraw();
  }

  view.toolbar.append(search, fitButton, openButton, closeButton, allButton, noneButton, criticalButton, element("span", { class: "bl-space" }), moves);
  devicesChanged();
  const pressed = () => criticalButton.setAttribute("aria-pressed", String(Boolean(model.get("critical"))));
  pressed();

  const stop = listen(model, {
    nodes: rebuild,
    paint: repaint,
    devices: devicesChanged,
    colors: devicesChanged,
    selected: () => { selected = new Set(model.get("selected")); describeSelection(); view.redraw(); },
    critical: () => { pressed(); view.redraw(); },
    status: describeSelection,
    dim: () => { dim = readDim(model); view.redraw(); },
    focus: () => {
      const targets = model.get("focus").map((id) => scene.at.get(id)).filter((i) => i !== undefined);
      if (targets.length) bring(targets);
    },
    height: () => { view.stage.style.height = `${model.get("height")}px`; },
  });
  return () => { stop(); view.close(); clearTimeout(typing); };
}

export default { render };
