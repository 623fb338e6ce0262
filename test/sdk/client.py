"""Makes calls with an official library: reads one as JSON from each line and prints what came of it as another.

A call is {"sdk", "base", "key", "headers", "size", "retries"}, with "path" and "body" instead of a chat request.
"""

import json
import sys


def call_openai(c):
    import openai

    client = openai.OpenAI(base_url=c["base"] + "/v1", api_key=c["key"], default_headers=c["headers"], max_retries=c["retries"])
    if c.get("path"):
        return client.post(c["path"], body=c["body"], cast_to=object)
    return client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x" * c["size"]}])


def call_anthropic(c):
    import anthropic

    client = anthropic.Anthropic(base_url=c["base"], api_key=c["key"], default_headers=c["headers"], max_retries=c["retries"])
    return client.messages.create(model="demo", max_tokens=10, messages=[{"role": "user", "content": "x" * c["size"]}])


def call_google(c):
    from google import genai

    options = genai.types.HttpOptions(base_url=c["base"], headers=c["headers"])
    client = genai.Client(api_key=c["key"], http_options=options)
    return client.models.generate_content(model="demo", contents="x" * c["size"])


def describe(error):
    """The fields by which callers of the libraries tell errors apart."""
    first = lambda *names: next((v for n in names if (v := getattr(error, n, None)) is not None), None)
    response = getattr(error, "response", None)
    return {
        "error": type(error).__name__,
        "bases": [b.__name__ for b in type(error).__mro__],
        "text": str(error),
        "status": first("status_code", "code"),
        "type": first("type", "status"),
        "code": str(first("error_code", "code")),
        "message": first("api_message", "message"),
        "retryAfter": response.headers.get("retry-after") if response is not None else None,
    }


def main():
    calls = {"openai-python": call_openai, "anthropic-python": call_anthropic, "google-python": call_google}
    for line in sys.stdin:
        c = json.loads(line)
        try:
            calls[c["sdk"]](c)
        except Exception as error:  # every kind is an answer here
            print(json.dumps(describe(error)), flush=True)
        else:
            print(json.dumps({"error": ""}), flush=True)


main()
