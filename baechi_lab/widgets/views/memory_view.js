// Memory view: bytes over time per device, stacked by category, against the device's limit. Traits: see memory_view.py.

const ROW = 62; // where there is no more room: three lines of text
const ROW_OF_SEVERAL = 74; // a fourth line says where the row is from
const FOOT = 20;
const TICK_ROOM = 48; // for the labels of the scale of bytes, which stand on the chart
const MEASURED_ROOM = 88; // for the label of the measured peak, at the right edge
const CATEGORIES = ["persistent", "outputs", "temporary", "copies"];
const CATEGORY_TEXT = { persistent: "persistent", outputs: "outputs", temporary: "temporary", copies: "received copies" };

/** How each category is hatched on its shade: an empty list is plain. Lines of a square of 6 pixels. @type {number[][][]} */
const HATCHES = [[], [[0, 6, 6, 0]], [[0, 3, 6, 3]], [[3, 0, 3, 6], [0, 3, 6, 3]]];

/** Marks of a scale of bytes from 0 to `largest`: a step of 1, 2 or 5 times a power of ten, below the line of the limit at the
 * upper edge. @param {number} largest @returns {number[]} */
function byteTicks(largest) {
  return ticks(0, largest, 3).filter((value) => value > 0 && value < 0.92 * largest);
}

function readLevels(model) {
  const c = model.get("levels");
  return {
    time: column(c, "time", "f8"), pointer: column(c, "pointer", "i4"),
    bytes: CATEGORIES.map((name) => column(c, name, "f8")),
  };
}

function render({ model, el }) {
  let levels = readLevels(model);
  let devices = model.get("devices");
  let colours = model.get("colors");
  let shades = model.get("shades");
  const view = frame(el, "Memory", draw);
  const axis = timeAxis(model, () => view, () => model.get("devices"));
  const { scaleX, xOf, timeAt } = axis;
  const legend = element("span", { class: "bl-group" });
  const reset = button("Whole", "show the whole step (0)", axis.fit);
  const title = element("span", { class: "bl-title" });
  view.describe(
    "Bytes that each device holds over time, by category, against its limit; peaks are told below it.",
    { "← →": "move in time", "+, -": "zoom", 0: "show the whole step", l: "list what is live at the peak of the fullest device", "?": "show or hide these keys" },
    () => ({
      caption: "Peak of each device", head: ["device", "peak", "limit", "at", "caused by", ...CATEGORIES.map((name) => CATEGORY_TEXT[name])],
      rows: model.get("peaks").map((p, d) => [
        rowName(d), peakText(p.bytes), formatLimit(model.get("limit_bytes")[d]), time(p.time_us), p.name, ...p.parts.map(peakText),
      ]),
    }));
  const live = element("div", { class: "bl-live-tensors", role: "status", hidden: true });
  view.host.insertBefore(live, view.live);
  view.toolbar.append(reset, legend, element("span", { class: "bl-space" }), title);

  /** A time in the unit of the step. @param {number} us */
  const time = (us) => formatTimeBeside(us, model.get("span_us"));
  /** Bytes in the unit of the largest peak: all that is held has one unit. @param {number} bytes */
  const peakText = (bytes) => formatBytesBeside(bytes, Math.max(...model.get("peaks").map((/** @type {any} */ p) => p.bytes)));
  /** Limits have one unit as well. @param {number} bytes */
  const limitOf = (bytes) => formatBytesBeside(bytes, Math.max(...model.get("limit_bytes")));
  /** Simulated and measured rows are shown beside each other. */
  const several = () => new Set(model.get("origins")).size > 1;
  const rowName = (d) => (several() ? `${devices[d]}, ${model.get("origins")[d]}` : devices[d]);

  /** The last change of a device at or before `time`; pointer - 1 when there is none yet. */
  function lastChange(device, time) {
    return firstPlace(levels.pointer[device], levels.pointer[device + 1], (row) => levels.time[row] <= time) - 1;
  }

  function total(row) {
    return levels.bytes[0][row] + levels.bytes[1][row] + levels.bytes[2][row] + levels.bytes[3][row];
  }

  const leastRow = () => (several() ? ROW_OF_SEVERAL : ROW);

  /** Rows share the room. */
  function rowHeight() {
    return Math.max(leastRow(), (view.height - FOOT) / Math.max(devices.length, 1));
  }

  /** Per pixel column the row with the most bytes: what one column can honestly show. */
  function columnsOf(device, width) {
    const first = levels.pointer[device];
    const last = levels.pointer[device + 1];
    const rows = [];
    let row = lastChange(device, timeAt(axis.gutter));
    for (let x = axis.gutter; x < width - 8; x += 1) {
      const until = timeAt(x + 1);
      let best = row;
      while (row + 1 < last && levels.time[row + 1] < until) {
        row += 1;
        if (best < first || total(row) >= total(best)) best = row;
      }
      rows.push(until > model.get("makespan_us")[device] + 1 / scaleX() || best < first ? -1 : best);
    }
    return rows;
  }

  function draw(context, width, height, theme) {
    context.fillStyle = theme.background;
    context.fillRect(0, 0, width, height);
    context.textBaseline = "middle";
    if (!devices.length) drawHaloed(context, "no memory curves: no placement fits yet", 8, height / 2, theme.faint, theme);
    const hatches = CATEGORIES.map((_, k) => hatchOf(context, HATCHES[k], theme.background));
    devices.forEach((device, d) => drawDevice(context, d, width, theme, hatches));
    drawTimeAxis(context, width, height, theme);
    axis.drawCursor(context, theme, 0, height - FOOT);
  }

  function drawDevice(context, d, width, theme, hatches) {
    const top = d * rowHeight() + 8;
    const base = top + rowHeight() - 14;
    const tall = base - top;
    const largest = model.get("largest_bytes");
    const limit = model.get("limit_bytes")[d];
    const peak = model.get("peaks")[d];
    const yOf = (value) => base - (value / Math.max(largest, 1)) * tall;
    const rows = columnsOf(d, width);
    const below = new Float64Array(rows.length);
    CATEGORIES.forEach((name, k) => {
      context.fillStyle = shades[d][k];
      context.beginPath();
      context.moveTo(axis.gutter, base);
      rows.forEach((row, i) => context.lineTo(axis.gutter + i, yOf(below[i] + (row < 0 ? 0 : levels.bytes[k][row]))));
      for (let i = rows.length - 1; i >= 0; i -= 1) context.lineTo(axis.gutter + i, yOf(below[i]));
      context.fill();
      if (hatches[k]) {
        context.fillStyle = hatches[k];
        context.fill();
      }
      rows.forEach((row, i) => { below[i] += row < 0 ? 0 : levels.bytes[k][row]; });
    });
    context.strokeStyle = theme.grid;
    context.lineWidth = 1;
    context.strokeRect(axis.gutter + 0.5, top + 0.5, width - axis.gutter - 9, tall);
    drawTickLines(context, largest, yOf, width, theme); // before the texts, which no line may cross
    drawLimit(context, peak, limit, largest, yOf, width, theme);
    drawMeasured(context, peak, yOf, width, theme);
    drawTickLabels(context, largest, yOf, theme);
    drawPeak(context, peak, limit, largest, yOf, top, width, theme);
    context.textAlign = "left";
    context.fillStyle = colours[d];
    context.fillRect(4, top + 6, 10, 10);
    context.font = `11px ${theme.font}`;
    context.fillStyle = theme.text;
    context.fillText(shortened(devices[d], axis.gutter - 32, 11), 18, top + 11.5);
    context.fillStyle = peak.bytes > limit ? theme.danger : theme.faint;
    context.font = `10px ${theme.font}`;
    context.fillText(`peak ${peakText(peak.bytes)}`, 18, top + 27);
    context.fillText(`limit ${limitOf(limit)}`, 18, top + 40);
    if (several()) {
      context.fillStyle = theme.text;
      context.fillText(model.get("origins")[d], 18, top + 53);
    }
  }

  /** A line over the whole width of the scale. */
  const drawAcross = (context, y, width, colour, thickness = 1, dash = []) =>
    drawLine(context, [axis.gutter, y, width - 8, y], colour, thickness, dash);

  const tickY = (value, yOf) => Math.round(yOf(value)) + 0.5;

  function drawTickLines(context, largest, yOf, width, theme) {
    for (const value of byteTicks(largest)) drawAcross(context, tickY(value, yOf), width, theme.grid);
  }

  function drawTickLabels(context, largest, yOf, theme) {
    context.font = `9px ${theme.font}`;
    context.textAlign = "left";
    for (const value of byteTicks(largest)) {
      drawHaloed(context, withoutEndingZeros(peakText(value)), axis.gutter + 3, tickY(value, yOf), theme.text, theme);
    }
  }

  /** @param {number} limit @param {boolean} inside whether the line of the limit is where its bytes are on the scale */
  function limitText(limit, inside) {
    return `limit ${limitOf(limit)}${inside ? "" : ", above this scale"}`;
  }

  /** Whether the label of the limit, a little below its line, stands at the scale: the peak and its label are at this height in the right half. */
  function isLimitAtScale(peak, limit, largest, yOf, width) {
    return Math.abs(yOf(Math.min(limit, largest)) + 8 - (yOf(peak.bytes) - 3)) < 12 && xOf(peak.time_us) > (axis.gutter + width) / 2;
  }

  /** The device's memory: a line where it is on this scale, else one at the upper edge that says so. */
  function drawLimit(context, peak, limit, largest, yOf, width, theme) {
    const inside = limit <= largest;
    const y = inside ? yOf(limit) : yOf(largest) + 2;
    drawAcross(context, y, width, theme.danger, 1.5, inside ? [5, 3] : [2, 5]);
    context.font = `9px ${theme.font}`;
    const isAtScale = isLimitAtScale(peak, limit, largest, yOf, width);
    context.textAlign = isAtScale ? "left" : "right";
    drawHaloed(context, limitText(limit, inside), isAtScale ? axis.gutter + TICK_ROOM : width - 12, y + 7, theme.danger, theme);
  }

  /** What the device held at most when the step ran, beside what it is simulated to hold. */
  function drawMeasured(context, peak, yOf, width, theme) {
    if (!(peak.measured_bytes > 0)) return;
    drawAcross(context, yOf(peak.measured_bytes), width, theme.text, 1, [2, 3]);
    context.font = `10px ${theme.font}`;
    context.textAlign = "right";
    context.fillStyle = theme.text;
    context.fillText("measured peak", width - 12, measuredMiddle(peak, yOf));
  }

  /** The height of the label of the measured peak. */
  function measuredMiddle(peak, yOf) {
    return yOf(peak.measured_bytes) + (peak.measured_bytes > peak.bytes ? 7 : -7);
  }

  /** A line per category of what is held at the peak, simulated and, where it ran, measured. */
  function partsOf(peak) {
    const measured = peak.measured_parts;
    return peak.parts.map((bytes, k) => [
      CATEGORY_TEXT[CATEGORIES[k]], peakText(bytes) + (measured.length ? `, measured ${peakText(measured[k])}` : ""),
    ]);
  }

  function drawPeak(context, peak, limit, largest, yOf, top, width, theme) {
    if (!(peak.bytes > 0) || peak.time_us < axis.range[0] || peak.time_us > axis.range[1]) return;
    const x = xOf(peak.time_us);
    const y = yOf(peak.bytes);
    context.fillStyle = theme.text;
    context.beginPath();
    context.moveTo(x, y + 1);
    context.lineTo(x - 4, y - 6);
    context.lineTo(x + 4, y - 6);
    context.fill();
    context.font = `10px ${theme.font}`;
    const room = Math.max(x - axis.gutter, width - 8 - x) - 11;
    const scopes = peak.name.split("/");
    const text = shortened((scopes.length > 3 ? "…/" : "") + scopes.slice(-3).join("/"), Math.min(260, room), 10);
    const wide = context.measureText(text).width + 4;
    const middle = Math.max(y - 3, top + 5);
    // Neither on the label of a tick nor on that of the measured peak or of the limit at this height.
    const isBesideTick = byteTicks(largest).some((value) => Math.abs(yOf(value) - middle) < 11);
    const isBesideLimit = Math.abs(yOf(Math.min(limit, largest)) + 8 - middle) < 12;
    const isBesideMeasured = peak.measured_bytes > 0 && Math.abs(measuredMiddle(peak, yOf) - middle) < 12;
    const limitRoom = isBesideLimit ? context.measureText(limitText(limit, limit <= largest)).width + 6 : 0;
    const isAtScale = isLimitAtScale(peak, limit, largest, yOf, width);
    const from = axis.gutter + (isBesideTick || isAtScale ? TICK_ROOM : 0) + (isAtScale ? limitRoom : 0);
    const to = width - 8 - Math.max(isBesideMeasured ? MEASURED_ROOM : 0, isAtScale ? 0 : limitRoom);
    const [left, where] = besideMark(x, wide, from, to);
    context.textAlign = left ? "right" : "left";
    context.fillStyle = theme.background;
    context.globalAlpha = 0.75;
    context.fillRect(left ? where - wide + 2 : where - 2, middle - 6, wide, 12);
    context.globalAlpha = 1;
    context.fillStyle = theme.text;
    context.fillText(text, where, middle);
  }

  function drawTimeAxis(context, width, height, theme) {
    context.font = `11px ${theme.font}`;
    context.textAlign = "center";
    context.fillStyle = theme.faint;
    const marks = ticks(axis.range[0], axis.range[1], (width - axis.gutter) / 110), labels = tickLabels(marks);
    for (const [k, time] of marks.entries()) {
      drawTick(context, labels[k], xOf(time), axis.gutter, width, height - FOOT / 2);
    }
  }

  function hover(x, y) {
    const d = Math.floor((y - 4) / rowHeight());
    if (d < 0 || d >= devices.length) return showTooltip(view, 0, 0, "", []);
    const peak = model.get("peaks")[d];
    if (x < axis.gutter) {
      return showTooltip(view, x, y, rowName(d), [
        ["peak", peakText(peak.bytes) + (peak.measured_bytes > 0 ? `, measured ${peakText(peak.measured_bytes)}` : "")],
        ...partsOf(peak),
        ["at", time(peak.time_us)], ["caused by", peak.name], ["limit", formatLimit(model.get("limit_bytes")[d])],
      ]);
    }
    const row = lastChange(d, timeAt(x));
    if (row < levels.pointer[d]) return showTooltip(view, 0, 0, "", []);
    return showTooltip(view, x, y, `${rowName(d)} at ${time(timeAt(x))}`, [
      ...CATEGORIES.map((name, k) => [CATEGORY_TEXT[name], formatBytesBeside(levels.bytes[k][row], total(row))]),
      ["together", formatBytes(total(row))],
    ]);
  }

  gestures(view, {
    move: axis.move,
    hover,
    click: (x, y) => {
      showTooltip(view, 0, 0, "", []); // the list takes room from the rows, which then lie elsewhere
      const d = Math.floor((y - 4) / rowHeight());
      if (d >= 0 && d < devices.length) model.send({ type: "live", row: d, time_us: x < axis.gutter ? model.get("peaks")[d].time_us : timeAt(x) });
      const peak = model.get("peaks")[d];
      if (peak && peak.op >= 0 && (x < axis.gutter || Math.abs(x - xOf(peak.time_us)) < 12)) {
        model.set("selected", [peak.op]);
        model.save_changes();
      }
    },
    rectangle: axis.rectangle,
  });
  axis.listen(view, {
    l: () => {
      const peaks = model.get("peaks");
      const row = peaks.reduce((/** @type {number} */ best, /** @type {any} */ p, /** @type {number} */ d) => (p.bytes > peaks[best].bytes ? d : best), 0);
      if (peaks.length) model.send({ type: "live", row, time_us: peaks[row].time_us });
    },
  });

  /** The largest of what was live at the instant that was clicked. */
  function listLive() {
    const shown = model.get("live");
    live.hidden = shown.row === undefined;
    if (live.hidden) return;
    const part = shown.count > shown.rows.length ? `, the ${shown.rows.length} largest of ${shown.count.toLocaleString("en")}` : "";
    const pick = (/** @type {number} */ op) => { model.set("selected", [op]); model.save_changes(); };
    live.replaceChildren(
      element("div", { class: "bl-live-head" }, element("b", {}, `${rowName(shown.row)} at ${time(shown.time_us)}: ${formatBytes(shown.bytes)}${part}`),
        button("×", "close the list", () => { model.set("live", {}); model.save_changes(); })),
      element("ol", {}, ...shown.rows.map(([op, name, category, bytes]) => element("li", {},
        `${formatBytesBeside(bytes, shown.rows[0][3])} ${CATEGORY_TEXT[category]} of `, op < 0 ? name : element("button", { type: "button", class: "bl-link", title: `select ${name}`, onclick: () => pick(op) }, name)))));
  }

  function rebuild() {
    levels = readLevels(model);
    devices = model.get("devices");
    colours = model.get("colors");
    shades = model.get("shades");
    axis.read();
    legend.replaceChildren(...CATEGORIES.map((name, k) => element("span", {},
      element("span", { class: `bl-swatch bl-hatch-${k}`, style: `background-color:${model.get("legend")[k]};margin-left:8px` }), CATEGORY_TEXT[name])));
    view.stage.style.height = `${devices.length * leastRow() + FOOT}px`;
    const over = new Set(devices.filter((_, d) => model.get("peaks")[d].bytes > model.get("limit_bytes")[d])).size;
    title.textContent = over ? `${over} device${over > 1 ? "s" : ""} over the limit` : "";
    title.classList.toggle("bl-over", over > 0);
    const peaks = model.get("peaks").map((p, d) => `${rowName(d)}: peak ${peakText(p.bytes)}${p.name ? ` at ${p.name}` : ""}`);
    view.say([...peaks, model.get("empty_devices")].filter(Boolean).join("  ·  "));
    view.tabulate();
    view.redraw();
  }
  rebuild();
  listLive();
  const stop = listen(model, { levels: rebuild, peaks: rebuild, span_us: rebuild, limit_bytes: rebuild, largest_bytes: rebuild, shades: rebuild, empty_devices: rebuild, live: listLive, window: () => { axis.read(); view.redraw(); } });
  return () => { stop(); axis.stop(); view.close(); };
}

export default { render };
