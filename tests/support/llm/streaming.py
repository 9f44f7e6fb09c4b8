"""Streams of the `openai` package with something that happens in their midst, and the bytes of one."""

import json
from typing import Any

import anyio
import httpx
import openai
import trio

BEGUN = 20  # characters that each client has before anything happens


def texts_through(server, meanwhile, *asked):
    """Run a stream for each of `asked`, and `meanwhile()`, a coroutine of trio's, once all have begun.

    Returns what each client read, and its finish reason, or the error that it met.
    """
    return anyio.run(_texts, server, meanwhile, asked)


async def _texts(server, meanwhile, asked):
    outcomes: list[Any] = [None] * len(asked)
    begun = [anyio.Event() for _ in asked]

    async def read(client, number):
        text, ended = "", None
        try:
            async for chunk in await client.completions.create(**asked[number], stream=True):
                text += chunk.choices[0].text
                ended = chunk.choices[0].finish_reason
                if len(text) > BEGUN:
                    begun[number].set()
        except openai.APIError as error:
            ended = error
        finally:
            begun[number].set()
        outcomes[number] = (text, ended)

    async with (
        openai.AsyncOpenAI(base_url=server.openai_url, api_key="key", max_retries=0, timeout=60) as client,
        anyio.create_task_group() as group,
    ):
        for number in range(len(asked)):
            group.start_soon(read, client, number)
        for event in begun:
            await event.wait()
        assert outcomes == [None] * len(asked)
        await anyio.to_thread.run_sync(trio.run, meanwhile)
    return outcomes


class Events:
    """The events of one stream, as they are on the wire; they come while `reading` runs."""

    def __init__(self, url, **asked):
        self._url = url
        self._asked = {**asked, "stream": True}
        self.begun = anyio.Event()  # some text has come
        self.data = []  # of each event: the JSON value, or `[DONE]`
        self.comments = []
        self.cut = None  # the error of a connection that ended in the midst of the answer

    async def reading(self):
        """Read to the end."""
        try:
            async with (
                httpx.AsyncClient(timeout=60) as web,
                web.stream("POST", f"{self._url}/completions", json=self._asked) as answer,
            ):
                async for line in answer.aiter_lines():
                    if line.startswith(":"):
                        self.comments.append(line)
                    elif line.startswith("data: "):
                        told = line.removeprefix("data: ")
                        self.data.append(told if told == "[DONE]" else json.loads(told))
                        if len(self.text) > BEGUN:
                            self.begun.set()
        except httpx.TransportError as error:
            self.cut = error

    @property
    def text(self):
        """The text so far."""
        choices = (each["choices"] for each in self.data if "choices" in each)
        return "".join(choice["text"] for of_event in choices for choice in of_event)

    @property
    def error(self):
        """The error event, which stands before the end."""
        assert self.cut is None
        *_, last, done = self.data
        assert done == "[DONE]"
        return last.get("error")
