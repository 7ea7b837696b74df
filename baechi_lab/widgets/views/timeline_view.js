// Timeline view: one lane per device for compute and one for transfers, simulated above measured. Traits: see
// timeline_view.py. Bars narrower than a pixel are drawn as coverage per pixel column, so that a frame costs about as
// much as there are pixels, however many bars there are.

/** How strongly bars are drawn that are not selected, while others are. */
const FAINT = 0.25;

function render({ model, el }) {
  let bars = readBars(model);
  let lanes = model.get("lanes");
  let names = texts(model.get("names"));
  let colours = model.get("colors");
  let selected = new Set(model.get("selected"));
  let hovered = UNSEEN;
  let dim = readDim(model);
  let near = new Set([...model.get("inputs"), ...model.get("outputs")]);
  let tops = [];
  let coverage = new Float32Array(0);
  let cover = new Int16Array(0);

  const view = frame(el, "Timeline", draw);
  const axis = timeAxis(model, () => view, GUTTER);
  const { span, setWindow, scaleX, xOf, timeAt } = axis;
  const reset = button("Fit", "show the whole step (0)", axis.fit);
  const zoomSelection = button("Zoom to selection", "show the selected ops from first to last", () => toSelection());
  const criticalButton = button("Critical path", "mark the ops and transfers that determine the makespan (c)", () => toggleCritical());
  const trace = button("Chrome trace", "download this timeline as a trace for Perfetto or chrome://tracing", () => model.send({ type: "trace" }));
  const title = element("span", { class: "bl-title" });
  view.toolbar.append(reset, zoomSelection, criticalButton, trace, element("span", { class: "bl-space" }), title);

  function toSelection() {
    let from = Infinity;
    let to = -Infinity;
    for (let b = 0; b < bars.op.length; b += 1) {
      if (!selected.has(bars.op[b])) continue;
      from = Math.min(from, bars.start[b]);
      to = Math.max(to, bars.end[b]);
    }
    if (from > to) return;
    const margin = Math.max((to - from) * 0.25, span() * 1e-6);
    setWindow([Math.max(from - margin, 0), Math.min(to + margin, span())]);
  }
  function toggleCritical() {
    model.set("critical", !model.get("critical"));
    model.save_changes();
  }

  function arrange() {
    tops = [];
    let y = AXIS;
    for (const lane of lanes) {
      if (lane.heading) y += HEADING;
      const height = lane.kind === "transfers" ? TRANSFER_LANE : OP_LANE;
      tops.push([y, height]);
      y += height + (lane.kind === "transfers" ? 7 : 2);
    }
    view.stage.style.height = `${Math.max(y + 6, 70)}px`;
    const makespans = model.get("makespans");
    title.textContent = Object.entries(makespans).map(([origin, value]) => `${origin} ${formatTime(value)}`).join("  ·  ");
  }

  /** Where a bar lies in its lane: sends in the upper half, receives in the lower. */
  function extent(lane, bar) {
    const [top, height] = tops[lane];
    if (lanes[lane].kind !== "transfers") return [top + 2, height - 4];
    return bars.peer[bar] >= 0 ? [top + 1, height / 2 - 1] : [top + height / 2, height / 2 - 1];
  }

  // -- drawing -------------------------------------------------------------------------------------

  function drawAxis(context, width, height, theme) {
    context.font = `11px ${theme.font}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.strokeStyle = theme.grid;
    context.fillStyle = theme.faint;
    context.lineWidth = 1;
    context.beginPath();
    for (const time of ticks(axis.range[0], axis.range[1], (width - GUTTER) / 110)) {
      const x = Math.round(xOf(time)) + 0.5;
      context.moveTo(x, AXIS - 3);
      context.lineTo(x, height);
      drawTick(context, formatTime(time), x, width, AXIS / 2);
    }
    context.stroke();
  }

  function drawGutter(context, theme) {
    context.fillStyle = theme.background;
    context.fillRect(0, 0, GUTTER - 2, view.height);
    context.textAlign = "left";
    lanes.forEach((lane, k) => {
      const [top, height] = tops[k];
      if (lane.heading) {
        context.font = `600 11px ${theme.font}`;
        context.fillStyle = theme.text;
        context.fillText(lane.heading, 4, top - HEADING / 2);
      }
      if (lane.kind === "transfers") {
        context.font = `10px ${theme.font}`;
        context.fillStyle = theme.faint;
        context.fillText("transfers", 18, top + height / 2);
      } else {
        context.fillStyle = colours[lane.device];
        context.fillRect(4, top + height / 2 - 5, 10, 10);
        context.font = `11px ${theme.font}`;
        context.fillStyle = theme.text;
        context.fillText(shortened(lane.label, 60, 11), 18, top + height / 2 + 0.5);
        context.fillStyle = theme.faint;
        context.textAlign = "right";
        context.fillText(`${(lane.idle_share * 100).toFixed(0)}% idle`, GUTTER - 6, top + height / 2 + 0.5);
        context.textAlign = "left";
      }
    });
  }

  /** Beside selected ops, and the neighbours of the explained one, all others are faint. */
  const faint = (bar) => selected.size > 0 && !selected.has(bars.op[bar]) && !near.has(bars.op[bar]);

  /** Bars of one lane: wide ones as rectangles by colour, narrow ones as coverage of pixel columns. */
  function drawLane(context, lane, width) {
    const scale = scaleX();
    const from = firstVisible(bars, lane, axis.range[0]);
    const until = bars.pointer[lane + 1];
    const wide = [];
    coverage.fill(0);
    cover.fill(-1);
    let narrow = false;
    for (let b = from; b < until && bars.start[b] < axis.range[1]; b += 1) {
      if (bars.end[b] < axis.range[0]) continue;
      const x = GUTTER + (bars.start[b] - axis.range[0]) * scale;
      const w = (bars.end[b] - bars.start[b]) * scale;
      if (w >= 1.5) wide.push(b);
      else if (!dim[bars.label[b]]) {
        const pixel = Math.min(Math.max(Math.floor(x), 0), width - 1);
        const kind = bars.color[b] * 2 + (bars.peer[b] >= 0 || lanes[lane].kind !== "transfers" ? 0 : 1);
        coverPixel(coverage, cover, pixel, w, kind, faint(b));
        narrow = true;
      }
    }
    for (const b of wide) {
      const [y, h] = extent(lane, b);
      const x = Math.max(GUTTER + (bars.start[b] - axis.range[0]) * scale, GUTTER - 2);
      const end = Math.min(GUTTER + (bars.end[b] - axis.range[0]) * scale, width + 2);
      context.fillStyle = colours[bars.color[b] % colours.length];
      context.globalAlpha = dim[bars.label[b]] ? 0.12 : faint(b) ? FAINT : 1;
      context.fillRect(x, y, Math.max(end - x - (end - x > 4 ? 0.7 : 0), 0.7), h);
    }
    context.globalAlpha = 1;
    if (narrow) drawCoverage(context, lane, width);
    return wide;
  }

  function drawCoverage(context, lane, width) {
    const [top, height] = tops[lane];
    const half = lanes[lane].kind === "transfers";
    let from = 0;
    const level = (p) => (cover[p] < 0 ? -1 : cover[p] * 64 + Math.max(1, Math.round(Math.min(coverage[p], 1) * LEVELS)));
    while (from < width) {
      const code = level(from);
      let to = from + 1;
      while (to < width && level(to) === code) to += 1;
      if (code >= 0) {
        const kind = Math.floor(code / 128);
        const full = 0.25 + (0.75 * (code % 64)) / LEVELS;
        context.globalAlpha = Math.floor(code / 64) % 2 ? full * FAINT : full;
        context.fillStyle = colours[(kind >> 1) % colours.length];
        const y = half ? top + 1 + (kind & 1) * (height / 2) : top + 2;
        context.fillRect(from, y, to - from, half ? height / 2 - 1 : height - 4);
      }
      from = to;
    }
    context.globalAlpha = 1;
  }

  function drawText(context, lane, wide, theme) {
    if (lanes[lane].kind === "transfers" || wide.length > 400) return;
    context.font = `10px ${theme.font}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (const b of wide) {
      const x = Math.max(xOf(bars.start[b]), GUTTER);
      const w = Math.min(xOf(bars.end[b]), view.width) - x;
      if (w < 40) continue;
      const name = names[bars.label[b]] ?? "";
      const [y, h] = extent(lane, b);
      context.fillStyle = textOn(colours[bars.color[b] % colours.length]);
      context.fillText(shortened(name.slice(name.lastIndexOf("/") + 1), w - 8, 10), x + 4, y + h / 2 + 0.5);
    }
  }

  function outlines(context, theme) {
    const marked = model.get("critical");
    for (let lane = 0; lane < lanes.length; lane += 1) {
      for (let b = firstVisible(bars, lane, axis.range[0]); b < bars.pointer[lane + 1] && bars.start[b] < axis.range[1]; b += 1) {
        if (bars.end[b] < axis.range[0]) continue;
        const chosen = selected.has(bars.op[b]);
        const critical = marked && bars.critical[b];
        if (!chosen && !critical && b !== hovered) continue;
        const [y, h] = extent(lane, b);
        const x = xOf(bars.start[b]);
        const w = Math.max(xOf(bars.end[b]) - x, 1);
        if (critical) {
          context.fillStyle = theme.danger;
          context.fillRect(x, y + h - 2, w, 3);
        }
        // Bars too narrow for an outline stand out by the others being faint: outlines would paint them over.
        if (b === hovered || (chosen && w > 4)) {
          context.strokeStyle = b === hovered ? theme.accent : theme.text;
          context.lineWidth = 1;
          context.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
        }
      }
    }
  }

  /** Of the explained op: from the end of what it reads to its start, and from its end to the start of its readers. */
  function arrows(context, theme) {
    const op = explained();
    if (op === UNSEEN) return;
    const places = new Map();
    const wanted = new Set([op, ...near]);
    for (let lane = 0; lane < lanes.length && lanes[lane].origin === lanes[0].origin; lane += 1) {
      if (lanes[lane].kind === "transfers") continue;
      for (let b = bars.pointer[lane]; b < bars.pointer[lane + 1]; b += 1) {
        if (wanted.has(bars.op[b])) places.set(bars.op[b], [xOf(bars.start[b]), xOf(bars.end[b]), tops[lane][0] + tops[lane][1] / 2]);
      }
    }
    const link = (from, to) => {
      if (!places.has(from) || !places.has(to)) return;
      const [, x0, y0] = places.get(from);
      const [x1, , y1] = places.get(to);
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(x0 + 14, y0, x1 - 14, y1, x1 - 1, y1);
      context.moveTo(x1 - 6, y1 - 3);
      context.lineTo(x1 - 1, y1);
      context.lineTo(x1 - 6, y1 + 3);
      context.stroke();
    };
    context.strokeStyle = theme.text;
    context.lineWidth = 1;
    context.globalAlpha = 0.8;
    for (const other of model.get("inputs")) link(other, op);
    for (const other of model.get("outputs")) link(op, other);
    context.globalAlpha = 1;
  }

  function draw(context, width, height, theme) {
    if (coverage.length !== width) {
      coverage = new Float32Array(width);
      cover = new Int16Array(width);
    }
    context.fillStyle = theme.background;
    context.fillRect(0, 0, width, height);
    drawAxis(context, width, height, theme);
    for (let lane = 0; lane < lanes.length; lane += 1) drawText(context, lane, drawLane(context, lane, width), theme);
    if (selected.size || model.get("critical") || hovered !== UNSEEN) outlines(context, theme);
    arrows(context, theme);
    context.textBaseline = "middle";
    drawGutter(context, theme);
    drawRectangle(view, context, theme);
  }

  // -- pointing ------------------------------------------------------------------------------------

  function barAt(x, y) {
    const lane = tops.findIndex(([top, height]) => y >= top && y < top + height);
    if (lane < 0 || x < GUTTER) return [UNSEEN, lane];
    const slack = 2 / scaleX();
    const time = timeAt(x);
    let best = UNSEEN;
    let nearest = Infinity;
    for (let b = firstVisible(bars, lane, time - slack); b < bars.pointer[lane + 1] && bars.start[b] <= time + slack; b += 1) {
      const [top, height] = extent(lane, b);
      if (y < top || y > top + height) continue;
      const away = Math.max(bars.start[b] - time, time - bars.end[b], 0);
      if (away <= slack && away < nearest) [nearest, best] = [away, b];
    }
    return [best, lane];
  }

  function laneFacts(lane) {
    const l = lanes[lane];
    if (l.kind === "transfers") return [["transfers", String(bars.pointer[lane + 1] - bars.pointer[lane])], ["", "above: sent, below: received"]];
    return [
      ["busy", formatTime(l.busy_us)], ["idle", `${formatTime(l.idle_us)} (${(l.idle_share * 100).toFixed(1)}% of the step)`],
      ["bubbles", `${l.bubbles}, together ${formatTime(l.bubble_us)}`], ["longest", l.bubbles ? formatTime(l.longest_us) : ""],
    ];
  }

  function hover(x, y) {
    const [bar, lane] = barAt(x, y);
    if (bar !== UNSEEN) {
      const l = lanes[lane];
      const moved = l.kind === "transfers";
      showTooltip(view, x, y, names[bars.label[bar]] ?? "?", [
        [moved ? "transfer" : "device", moved ? describePeer(l, bar) : l.label],
        ["origin", l.origin], ["start", formatTime(bars.start[bar])],
        ["takes", formatTime(bars.end[bar] - bars.start[bar])], ["size", moved ? formatBytes(bars.bytes[bar]) : ""],
      ]);
    } else if (lane >= 0 && x < GUTTER) showTooltip(view, x, y, `${lanes[lane].label}, ${lanes[lane].origin}`, laneFacts(lane));
    else showTooltip(view, 0, 0, "", []);
    if (bar !== hovered) {
      hovered = bar;
      view.redraw();
    }
  }

  function describePeer(lane, bar) {
    const devices = model.get("devices");
    const peer = bars.peer[bar];
    return peer >= 0 ? `${lane.label} to ${devices[peer]}` : `${devices[-peer - 1]} to ${lane.label}`;
  }

  /** The op that is explained: the clicked one, whatever is selected with it, or the only one. */
  const explained = () => {
    const focus = model.get("focus");
    return selected.has(focus) ? focus : selected.size === 1 ? [...selected][0] : UNSEEN;
  };

  function select(ops, focus = UNSEEN) {
    selected = new Set(ops);
    model.set("focus", focus);
    model.set("selected", [...selected]);
    model.save_changes();
    describe();
    view.redraw();
  }

  function describe() {
    if (!selected.size) return view.say(model.get("status"));
    const rows = [];
    const op = explained();
    for (let lane = 0; op !== UNSEEN && lane < lanes.length && rows.length < 4; lane += 1) {
      if (lanes[lane].kind === "transfers") continue;
      for (let b = bars.pointer[lane]; b < bars.pointer[lane + 1] && rows.length < 4; b += 1) {
        if (bars.op[b] === op) rows.push(`${names[bars.label[b]]} on ${lanes[lane].label}, ${lanes[lane].origin}: ${formatTime(bars.start[b])} to ${formatTime(bars.end[b])}`);
      }
    }
    const why = model.get("why");
    const count = selected.size === 1 ? [] : [`${selected.size} ops selected`];
    return view.say([...count, ...rows, ...(why ? [`why then: ${why}`] : [])].join("  ·  "));
  }

  gestures(view, {
    move: axis.move,
    hover,
    click: (x, y, event) => {
      const [bar] = barAt(x, y);
      if (bar === UNSEEN || bars.op[bar] < 0) return select([]);
      if (!(event.shiftKey || event.ctrlKey || event.metaKey)) return select([bars.op[bar]], bars.op[bar]);
      const next = new Set(selected);
      if (!next.delete(bars.op[bar])) next.add(bars.op[bar]);
      return select(next);
    },
    rectangle: axis.rectangle,
  });

  function neighbour(by) {
    const current = bars.op.findIndex((op) => selected.has(op));
    const next = current < 0 ? 0 : current + by;
    if (next >= 0 && next < bars.op.length && bars.op[next] >= 0) select([bars.op[next]], bars.op[next]);
  }
  const keys = {
    Escape: () => select([]), n: () => neighbour(1), p: () => neighbour(-1), c: () => toggleCritical(), z: () => toSelection(),
  };
  axis.listen(view, keys);

  function rebuild() {
    bars = readBars(model);
    lanes = model.get("lanes");
    colours = model.get("colors");
    hovered = UNSEEN;
    axis.read();
    arrange();
    describe();
    view.redraw();
  }
  function readNear() {
    near = new Set([...model.get("inputs"), ...model.get("outputs")]);
    view.redraw();
  }
  const pressed = () => criticalButton.setAttribute("aria-pressed", String(Boolean(model.get("critical"))));
  pressed();
  arrange();
  describe();

  const stop = listen(model, {
    bars: rebuild,
    lanes: rebuild,
    span_us: rebuild,
    makespans: rebuild,
    names: () => { names = texts(model.get("names")); view.redraw(); },
    selected: () => { selected = new Set(model.get("selected")); describe(); view.redraw(); },
    window: () => { axis.read(); view.redraw(); },
    critical: () => { pressed(); view.redraw(); },
    status: describe,
    why: describe,
    inputs: readNear,
    outputs: readNear,
    dim: () => { dim = readDim(model); view.redraw(); },
  });
  const onMessage = (message, buffers) => {
    if (message.type !== "download") return;
    const link = element("a", { download: message.name, href: URL.createObjectURL(new Blob([buffers[0]], { type: message.mime })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  model.on("msg:custom", onMessage);
  return () => { stop(); model.off("msg:custom", onMessage); view.close(); };
}

export default { render };
