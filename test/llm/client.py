"""Calls through Envoy with the providers' own libraries. Reads what to do as JSON from standard input and prints what came of it.

{"do": "stream", "sdk", "base", "tokens"}: one stream; its bytes, and when they came.
{"do": "load", "base", "seconds", "tenants": [{"name", "sdk", "rate", "tokens", "whole": n}]}: each tenant sends requests at its
rate, however slowly it is answered; one in n is not a stream (0: all are).
"""

import asyncio
import base64
import json
import sys
import time

import anthropic
import openai

PROMPT = [{"role": "user", "content": "Is all quiet?"}]


def client(sdk, base, tenant, kind=""):
    options = {"api_key": "none", "max_retries": 0, "timeout": 120, "default_headers": {"x-tenant-id": tenant}}
    if sdk == "openai":
        return getattr(openai, kind + "OpenAI")(base_url=base + "/v1", **options)
    return getattr(anthropic, kind + "Anthropic")(base_url=base, **options)


def calls(sdk, c):
    return c.chat.completions if sdk == "openai" else c.messages


def stream(ask):
    pieces, body = [], b""
    create = calls(ask["sdk"], client(ask["sdk"], ask["base"], "reader")).with_streaming_response.create
    with create(model="demo", max_tokens=ask["tokens"], messages=PROMPT, stream=True) as response:
        for piece in response.iter_bytes():
            body += piece
            pieces.append([time.time(), len(piece)])
    return {"body": base64.b64encode(body).decode(), "pieces": pieces}


def text_of(sdk, event):
    if sdk == "openai":
        return event.choices[0].delta.content or "" if event.choices else ""
    return event.delta.text if event.type == "content_block_delta" else ""


def whole_text(sdk, answer):
    return answer.choices[0].message.content if sdk == "openai" else answer.content[0].text


class Tenant:
    def __init__(self, settings, base):
        self.name, self.sdk, self.rate = settings["name"], settings["sdk"], settings["rate"]
        self.tokens, self.whole = settings["tokens"], settings["whole"]
        self.calls = calls(self.sdk, client(self.sdk, base, self.name, "Async"))
        self.asked = self.served = self.unserved = 0
        self.first, self.errors, self.texts = [], {}, set()

    async def request(self, i):
        began, first = time.monotonic(), None
        streams = not self.whole or i % self.whole != 0
        self.asked += 1
        try:
            answer = await self.calls.create(model="demo", max_tokens=self.tokens, messages=PROMPT, stream=streams)
            if not streams:
                self.texts.add(whole_text(self.sdk, answer))
                self.served += 1
                return
            text = ""
            async for event in answer:
                piece = text_of(self.sdk, event)
                if piece and first is None:
                    first = time.monotonic() - began
                text += piece
            self.texts.add(text)
            self.served += 1
        except asyncio.CancelledError:
            if first is None and streams:
                self.unserved += 1
                self.first.append(time.monotonic() - began)  # what it has waited at least
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            self.note(f"{error.status_code} {reason(error)}")
        except Exception as error:
            self.note(repr(error))
        if first is not None:
            self.first.append(first)

    def note(self, error):
        self.errors[error] = self.errors.get(error, 0) + 1

    async def drive(self, until):
        requests, next_at, i = [], time.monotonic(), 0
        while next_at < until:
            await asyncio.sleep(max(0, next_at - time.monotonic()))
            requests.append(asyncio.create_task(self.request(i)))
            next_at, i = next_at + 1 / self.rate, i + 1
        await asyncio.sleep(max(0, until - time.monotonic()))
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)


def reason(error):
    """Who refused: our reason, or the provider's code."""
    refusal = error.response.headers.get("x-headgate-reason")
    return refusal or "upstream"


async def load(ask):
    tenants = [Tenant(t, ask["base"]) for t in ask["tenants"]]
    until = time.monotonic() + ask["seconds"]
    await asyncio.gather(*(t.drive(until) for t in tenants))
    return {"tenants": [
        {"name": t.name, "asked": t.asked, "served": t.served, "unserved": t.unserved, "errors": t.errors, "first": sorted(t.first), "texts": sorted(t.texts)}
        for t in tenants
    ]}


if __name__ == "__main__":
    ask = json.load(sys.stdin)
    print(json.dumps(stream(ask) if ask["do"] == "stream" else asyncio.run(load(ask))))
