// A kernel that is shut down disconnects the workbench, which JupyterLab's widget manager leaves connected.

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.js";

const { watchKernel } = load(["common.js", "tab_strip.js"], ["watchKernel"]);
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
