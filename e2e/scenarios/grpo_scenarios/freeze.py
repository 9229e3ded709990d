"""Code that a scenario runs inside a rollout pod to freeze its engine core, and to let it go on."""

FREEZE_WHILE_IT_SAMPLES = """
import os, pathlib, re, signal, sys, time, urllib.request

children = pathlib.Path("/proc/1/task/1/children").read_text().split()
(core,) = [int(child) for child in children]
token = pathlib.Path(os.environ["GRPO_TOKENS_DIR"], "admin-token").read_text().strip()
headers = {"Authorization": "Bearer " + token, "X-GRPO-Attempt": "1"}
url = "http://127.0.0.1:8000/metrics?name[]=vllm:num_requests_running"
request = urllib.request.Request(url, headers=headers)
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    text = urllib.request.urlopen(request, timeout=10).read().decode()
    if float(re.search(r"^vllm:num_requests_running.* (\\S+)$", text, re.M)[1]) > 0:
        os.kill(core, signal.SIGSTOP)
        print(core)
        break
else:
    raise SystemExit("the engine sampled nothing for 60 s")
"""
"""Python code that stops the engine core while it has requests in work, and prints its process id."""

THAW = """
import os, signal, sys
os.kill(int(sys.argv[1]), signal.SIGCONT)
"""
"""Python code that lets a stopped process go on."""
