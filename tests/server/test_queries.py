"""Parameters in a query: known ones are obeyed, others refused."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from engine.server.openapi import OPERATIONS
from tests.server.speaking import Speaker

RESPONSES = "/v1/responses"
FREE = ("/", "/health", "/metrics")
"""For probes and scrapers, whose queries are not looked at."""
CHECKED = [key for key in OPERATIONS if key[0] != "POST" and key[1] not in FREE]


def kept(hermes: Speaker, items: int) -> str:
    hermes.says("Well.")
    sent: Any = [{"role": "user", "content": f"Say {number}."} for number in range(items)]
    return str(hermes.openai.responses.create(model=hermes.model, input=sent).id)


def texts(items: Any) -> list[str]:
    return [item.content for item in items]


def said(*numbers: int) -> list[str]:
    return [f"Say {number}." for number in numbers]


def test_input_items_by_pages(hermes: Speaker) -> None:
    api, id_ = hermes.openai.responses.input_items, kept(hermes, 25)
    page = api.list(id_)
    assert texts(page.data) == said(*range(24, 4, -1)) and page.has_more
    assert (page.first_id, page.last_id) == (page.data[0].id, page.data[-1].id)
    assert texts(page) == said(*range(24, -1, -1)), "the client reads on"
    for limit in (1, 4, 100):
        assert texts(api.list(id_, limit=limit, order="asc")) == said(*range(25))
    last: Any = page.data[-1].id
    rest = api.list(id_, after=last)
    assert texts(rest.data) == said(4, 3, 2, 1, 0) and not rest.has_more
    nothing: Any = api.list(id_, after=rest.data[-1].id)
    assert (nothing.data, nothing.first_id, nothing.has_more) == ([], None, False)
    for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "zz"}):
        with pytest.raises(openai.BadRequestError) as raised:
            api.list(id_, **wrong)  # type: ignore[arg-type]
        assert raised.value.param == next(iter(wrong))


def test_a_kept_response_is_not_streamed(hermes: Speaker) -> None:
    api, id_ = hermes.openai.responses, kept(hermes, 1)
    assert api.retrieve(id_, stream=False).id == id_
    with pytest.raises(openai.BadRequestError) as raised:
        api.retrieve(id_, stream=True)
    assert raised.value.param == "stream"


def test_what_clients_add_is_harmless(hermes: Speaker) -> None:
    api, id_ = hermes.openai.responses, kept(hermes, 1)
    assert api.retrieve(id_, include=["message.output_text.logprobs"]).id == id_
    plain = api.retrieve(id_, extra_query={"include_obfuscation": "false", "include": "x"})
    assert plain.id == id_
    listed = api.input_items.list(id_, include=["reasoning.encrypted_content"])
    assert texts(listed) == said(0)
    azure = {"api-version": "2024-10-21"}
    for path in (f"{RESPONSES}/{id_}", f"{RESPONSES}/{id_}/input_items", "/v1/models"):
        assert hermes.server.http.get(path, params=azure).status_code == 200
    assert hermes.server.http.delete(f"{RESPONSES}/{id_}", params=azure).status_code == 200
    for path in FREE:
        for query in ("x=1", "name[]=headrace_state", "_=17&cache=no"):
            assert hermes.server.http.get(f"{path}?{query}").status_code == 200


def test_models_as_both_clients_list_them(hermes: Speaker) -> None:
    for listed in (
        hermes.openai.models.list(),
        hermes.anthropic.models.list(limit=1),
        hermes.anthropic.beta.models.list(),
    ):
        assert [model.id for model in listed] == [hermes.model]
    assert not hermes.anthropic.models.list(after_id=hermes.model).data
    assert hermes.anthropic.beta.models.retrieve(hermes.model).id == hermes.model
    http = hermes.server.http
    assert http.get("/v1/models?client_version=1.2.3").status_code == 200
    for query in ("limit=0", "limit=x", "after_id=other"):
        assert http.get(f"/v1/models?{query}").status_code == 400


@pytest.mark.parametrize(("method", "path"), CHECKED)
def test_what_nobody_knows_is_refused(hermes: Speaker, method: str, path: str) -> None:
    where = path.format(id="resp_x", model=hermes.model)
    for name in ("made_up", "Stream", "a b"):
        answer = hermes.server.http.request(method, where, params={name: "1"})
        assert answer.status_code == 400 and name in answer.json()["error"]["message"], answer.text
        head = hermes.server.http.head(where, params={name: "1"})
        assert head.status_code == (400 if method == "GET" else head.status_code)


def test_the_query_of_a_post_is_not_read(hermes: Speaker) -> None:
    hermes.says("Well.")
    for path, limit in ((RESPONSES, "max_output_tokens"), ("/v1/completions", "max_tokens")):
        text = {"input": "hi"} if path == RESPONSES else {"prompt": "hi"}
        body = {"model": hermes.model, limit: 9, **text}
        assert hermes.server.http.post(f"{path}?beta=true&{limit}=x", json=body).status_code == 200


def test_another_method_is_refused_as_such(hermes: Speaker) -> None:
    assert hermes.server.http.put("/v1/models?made_up=1").status_code == 405


@pytest.mark.parametrize("verbosity", ["low", "medium", "high"])
def test_verbosity_is_taken_by_both_protocols(hermes: Speaker, verbosity: Any) -> None:
    hermes.says("Well.")
    turns: Any = [{"role": "user", "content": "hi"}]
    hermes.openai.chat.completions.create(model=hermes.model, messages=turns, verbosity=verbosity)
    answer = hermes.openai.responses.create(
        model=hermes.model, input="hi", text={"verbosity": verbosity}
    )
    assert answer.text is not None and answer.text.verbosity == verbosity


def test_another_verbosity_is_refused_by_both(hermes: Speaker) -> None:
    turns = [{"role": "user", "content": "hi"}]
    for path, fields, param in (
        ("/v1/chat/completions", {"messages": turns, "verbosity": "x"}, "verbosity"),
        (RESPONSES, {"input": "hi", "text": {"verbosity": "x"}}, "text.verbosity"),
    ):
        answer = hermes.server.http.post(path, json={"model": hermes.model, **fields})
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == param
        assert all(word in error["message"] for word in ("low", "medium", "high"))
