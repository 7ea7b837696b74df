"""Messages from the browser that arrive in a thread of their own, as in JupyterLab with ipykernel 7."""

import asyncio
import threading

import baechi_lab as bl


def from_browser(widget, **state):
    """Handles a change of the browser in another thread, and waits for that thread as long as it is not held up."""
    message = {"content": {"data": {"method": "update", "state": state}}}
    thread = threading.Thread(target=widget._handle_msg, args=(message,))
    thread.start()
    thread.join(5)


def test_bug_a_change_during_the_arrival_of_a_result_was_lost(diamond, pair):
    """The result that arrived starts a search for advice, which cancelled the computation of the change."""

    async def main():
        bench = bl.Workbench(diamond, pair, placer="single", passes=())
        placer = bench.setting.placer
        arrived, threads = [], set()

        def on_outcome(outcome):
            arrived.append(outcome.setting.placer)
            threads.add(threading.current_thread())
            if arrived == ["m-topo"]:  # its arrival goes on after this
                from_browser(placer, index=placer.options.index("m-etf"))

        bench.model.on("outcome", on_outcome)
        bench.model.on("setting", lambda _: threads.add(threading.current_thread()))
        from_browser(placer, index=placer.options.index("m-topo"))
        for _ in range(100):
            await asyncio.sleep(0.05)
            if len(arrived) == 2:
                break
        assert arrived == ["m-topo", "m-etf"] and not bench.model.stale
        assert threads == {threading.main_thread()}
        bench.model.cancel()

    asyncio.run(main())


def test_every_control_of_the_workbench_is_handled_on_its_loop(diamond, pair):
    """A control that sends changes from the browser is one of `controls`, also where a panel makes it later."""
    import ipywidgets

    from baechi_lab.widgets.controls import OnLoop

    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    bench.model.change(placer="search")
    widgets, waiting = set(), [bench]
    while waiting:
        widget = waiting.pop()
        widgets.add(widget)
        waiting += [child for child in getattr(widget, "children", ()) if child not in widgets]
    silent = (ipywidgets.Box, ipywidgets.HTML, ipywidgets.FloatProgress)
    assert {type(w) for w in widgets if not isinstance(w, (*silent, OnLoop))} == set()
    assert sum(isinstance(w, OnLoop) for w in widgets) > 50
