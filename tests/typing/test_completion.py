"""What IPython offers after an opening parenthesis: the parameters of callables, with jedi and without."""

import json
from pathlib import Path

import pytest
from support.process import run_script

# Prints, for each call, the keywords that IPython offers in it.
SHELL = """
import json, os, sys
os.environ["IPYTHONDIR"] = sys.argv[1]
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

config = Config()
config.HistoryManager.enabled = False
config.Completer.use_jedi = sys.argv[2] == "jedi"
shell = InteractiveShell.instance(config=config)
for line in json.loads(sys.argv[3]):
    shell.run_cell(line).raise_error()
offered = {}
with provisionalcompleter():
    for call in json.loads(sys.argv[4]):
        texts = {each.text for each in shell.Completer.completions(call, len(call))}
        offered[call] = sorted(text for text in texts if text.endswith("="))
print(json.dumps(offered))
"""
BEFORE = [
    "from manytail import *",
    "from manytail import broker, queue",
    "from manytail.executor import KeyedExecutor",
    "many = MultiQueue(); q = many.add('a')",
    "entries = EntryQueue(); subscription = entries.subscribe()",
    "topic = PubSubQueue()",
    "channel = broker.BlockingConnection().channel()",
]
BLOCKING = {"block=", "timeout="}
PARAMETERS = {
    "MultiQueue(": {"selection="},
    "many.add(": {"key=", "priority=", "maxsize=", "weight=", "enabled="},
    "many.add('b', maxs": {"maxsize="},
    "many.get(": BLOCKING,
    "q.put(": {"item="} | BLOCKING,
    "EntryQueue(": {"name=", "maxsize=", "overflow=", "ttl=", "dead_letter=", "groups="},
    "entries.put(": {"item=", "headers=", "priority=", "delay=", "immediate="} | BLOCKING,
    "entries.subscribe(": {"prefetch=", "selector=", "browse=", "exclusive=", "start="},
    "subscription.get(": BLOCKING,
    "PubSubQueue(": {"maxsize=", "slow="},
    "topic.publish(": {"item="} | BLOCKING,
    "concurrent_map(": {"fn=", "items=", "workers=", "order=", "key=", "retry=", "errors=", "setup="},
    "concurrent_map(str.upper, ['a'], ": {"workers=", "order=", "key=", "retry=", "errors=", "setup="},
    "aconcurrent_map(": {"fn=", "items=", "workers=", "errors="},
    "KeyedExecutor(": {"max_workers=", "per_key=", "max_pending="},
    "queue.Queue(": {"maxsize="},
    "channel.queue_declare(": {"queue=", "passive=", "durable=", "arguments="},
}


@pytest.mark.parametrize("completer", ["jedi", "inspect"])
def test_ipython_offers_the_parameters(completer: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path), completer, json.dumps(BEFORE), json.dumps(list(PARAMETERS))]
    offered = json.loads(run_script(SHELL, arguments=arguments).splitlines()[-1])
    missing = {call: due - set(offered[call]) for call, due in PARAMETERS.items()}
    assert not any(missing.values()), missing
