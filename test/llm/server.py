"""An inference server in miniature: so many requests run at a time and the others wait in the order they came, but the headers
of a stream go out at once, since that is what Starlette's StreamingResponse does. Speaks OpenAI's and Anthropic's APIs.
"""

import argparse
import asyncio
import json

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

WORDS = ["All", " quiet", " at", " the", " headgate", ": ü", ", 漢字", ", 🚰."]


class Engine:
    def __init__(self, slots, pause):
        self.slots, self.pause = asyncio.Semaphore(slots), pause

    async def tokens(self, count):
        async with self.slots:
            for i in range(count):
                await asyncio.sleep(self.pause)
                yield WORDS[i % len(WORDS)]


def openai_event(delta, finish=None):
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "demo",
             "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


def anthropic_event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n"


def anthropic_message(content, stop, written):
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "demo", "content": content, "stop_reason": stop,
            "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": written}}


async def openai_stream(engine, count):
    async for word in engine.tokens(count):
        yield openai_event({"role": "assistant", "content": word})
    yield openai_event({}, "stop")
    yield "data: [DONE]\n\n"


async def anthropic_stream(engine, count):
    first = True
    async for word in engine.tokens(count):
        if first:
            yield anthropic_event("message_start", message=anthropic_message([], None, 1))
            yield anthropic_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        first = False
        yield anthropic_event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield anthropic_event("content_block_stop", index=0)
    yield anthropic_event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": count})
    yield anthropic_event("message_stop")


def application(engine):
    app = FastAPI()

    def exhausted(request):
        """Tenants of this name have used up their quota with the provider."""
        if request.headers.get("x-tenant-id") == "exhausted":
            error = {"message": "You exceeded your current quota.", "type": "rate_limit_error", "code": "rate_limit_exceeded"}
            return JSONResponse({"type": "error", "error": error}, status_code=429, headers={"retry-after": "1"})

    @app.post("/v1/chat/completions")
    async def chat(request: Request):
        asked = await request.json()
        count = asked.get("max_tokens", 8)
        if refusal := exhausted(request):
            return refusal
        if asked.get("stream"):
            return StreamingResponse(openai_stream(engine, count), media_type="text/event-stream")
        text = "".join([word async for word in engine.tokens(count)])
        return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "demo",
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
                "usage": {"prompt_tokens": 9, "completion_tokens": count, "total_tokens": 9 + count}}

    @app.post("/v1/messages")
    async def messages(request: Request):
        asked = await request.json()
        count = asked.get("max_tokens", 8)
        if refusal := exhausted(request):
            return refusal
        if asked.get("stream"):
            return StreamingResponse(anthropic_stream(engine, count), media_type="text/event-stream")
        text = "".join([word async for word in engine.tokens(count)])
        return anthropic_message([{"type": "text", "text": text}], "end_turn", count)

    @app.get("/ready")
    async def ready():
        return {}

    return app


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--slots", type=int, required=True)
    options.add_argument("--pause", type=float, required=True, help="seconds for a token")
    o = options.parse_args()
    uvicorn.run(application(Engine(o.slots, o.pause)), host="127.0.0.1", port=o.port, log_level="warning", access_log=False)
