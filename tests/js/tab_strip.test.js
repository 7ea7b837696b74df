// A kernel that is shut down disconnects the workbench, which JupyterLab's widget manager leaves connected; a busy one is announced.

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.js";

const { watchAnswers, watchKernel } = load(["common.js", "tab_strip.js"], ["watchAnswers", "watchKernel"]);
const later = () => new Promise((resolve) => setTimeout(resolve, 20));

function marked() {
  const marks = [];
  return [marks, () => ({ classList: { add: (name) => marks.push(name) } })];
}

test("a kernel that lived and is gone marks the workbench, once", async () => {
  for (const gone of [null, { isDisposed: true }, { isDisposed: false, status: "dead" }]) {
    const [marks, bench] = marked();
    const manager = { kernel: { isDisposed: false, status: "idle" } };
    const stop = watchKernel(manager, bench, 2);
    await later();
    assert.deepEqual(marks, []);
    manager.kernel = gone;
    await later();
    assert.deepEqual(marks, ["jupyter-widgets-disconnected"]);
    stop();
  }
});

test("a front end that shows no kernel is left alone", async () => {
  for (const manager of [undefined, {}, { kernel: null }]) {
    const [marks, bench] = marked();
    const stop = watchKernel(manager, bench, 2);
    await later();
    stop();
    assert.deepEqual(marks, []);
  }
});

/** A workbench and a model whose kernel answers when `answer` is called. */
function asked() {
  const [doc, sent, handlers] = [globalThis.document, [], {}];
  const note = { textContent: "", setAttribute() {}, append() {}, remove() {} };
  globalThis.document = { createElement: () => note };
  const on = (kind, handler) => { handlers[kind] = handler; };
  const marks = new Set();
  const bench = { append() {}, classList: { contains: (mark) => marks.has(mark), add: (mark) => marks.add(mark) }, addEventListener: on, removeEventListener() {} };
  const model = { send: (message) => sent.push(message), on, off() {} };
  return { bench, model, note, sent, press: () => handlers.click(), answer: () => handlers["msg:custom"](), end: () => { globalThis.document = doc; } };
}

test("an unanswered click is announced until the answer comes, and asked for once", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { bench, model, note, sent, press, answer, end } = asked();
  const stop = watchAnswers(model, bench, 2000);
  press();
  press();
  t.mock.timers.tick(1999);
  assert.deepEqual([sent.length, note.textContent], [1, ""]);
  t.mock.timers.tick(1);
  assert.match(note.textContent, /^kernel busy/);
  answer();
  assert.equal(note.textContent, "");
  press();
  answer();
  t.mock.timers.tick(5000);
  assert.deepEqual([sent.length, note.textContent], [2, ""]);
  bench.classList.add("jupyter-widgets-disconnected"); // a message to a kernel that is gone is an error of the page
  press();
  assert.equal(sent.length, 2);
  stop();
  end();
});
