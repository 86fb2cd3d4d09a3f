"""Finds out what an engine is, whether its vocabulary is ours, and what it honours.

What it honours is tried, not looked up by version: engines accept unknown fields in silence.
"""

import hashlib
import json
import logging
import re
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.features import Features
from inference_svc.output_format import OutputFormat, OutputFormatKind
from inference_svc.upstream.embedding_turn import EmbeddingRoute
from inference_svc.upstream.endpoint import Endpoint
from inference_svc.upstream.engine_api import EngineApi, EngineInfo, Generation
from inference_svc.upstream.faults import (
    AnswerInvalid,
    EngineLost,
    EngineUnusable,
    RequestFailed,
    RequestRefused,
    TokensMissing,
    excerpt,
)
from inference_svc.upstream.pieces import VocabularyPieces
from inference_svc.upstream.target import UpstreamTarget, UpstreamVocabulary

VOCABULARY_TEXTS: Final = (
    "Hello, world! How are you today?",
    "The quick brown fox jumps over the lazy dog.",
    " leading and  double   spaces\tand\ttabs \n\n\n lines\r\n",
    "0 1 12 123 1234 12345 3.14159 1,000,000 0xFF 1e-9 2026-11-28",
    "it's they're we'll I'D DON'T",
    "def f(x: int) -> str:\n    return f\"{x!r}\" + '\\n'  # comment\n",
    '{"a": [1, 2.5, null], "b": {"c": "d"}}',
    "Ärger über größere Öfen, façade, naïve, Łódź, İstanbul",
    "Привет, как дела? Ёлка",
    "Καλημέρα κόσμε",
    "你好世界。今天天气怎么样",
    "こんにちは世界、カタカナ",
    "안녕하세요 세계",
    "مرحبا بالعالم ١٢٣",
    "שלום עולם",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "👋🏽 👨‍👩‍👧‍👦 🏳️‍🌈 ♥️",
    "e\u0301 \u00e9 \ufb01 \u200b \u00a0 \u2028",
    "https://example.org/a?b=c&d=%20#e user@example.org",
    "x" * 100,
    "<b>&amp;</b> \\frac{1}{2} $x^2$ ~~~ *** ### --- ___",
)
log = logging.getLogger(__name__)
_MAX_TOKEN_TEXTS: Final = 256
_DIGITS: Final = re.compile(r"\d+")
_PADDING: Final = re.compile(r"\[PAD\d+\]")
_PROBE_TEXT: Final = "zq"
_LOGPROBS: Final = (64, 20, 5, 1)


class Identity(NamedTuple):
    """What must not change under a name. `vocabulary` is a digest of tokens of fixed texts, and
    `vector_size` the length of embeddings, None without any."""

    kind: str
    model: str
    revision: str
    vector_size: int | None
    vocabulary: str


class PinnedIdentity:
    """The identity that the first engine of a name had, for as long as the service runs."""

    def __init__(self) -> None:
        self.identity: Identity | None = None

    def check(self, found: Identity) -> None:
        """Raise `EngineUnusable` if it is another one; pin it if it is the first."""
        if self.identity is None:
            self.identity = found
        elif found != self.identity:
            raise EngineUnusable(f"it serves {found[:4]}, but this name was {self.identity[:4]}")


Ask = Callable[[Endpoint, UpstreamTarget], Awaitable[EngineInfo]]
"""`InfoApi.info` of a kind."""


async def detect(
    endpoint: Endpoint, kinds: Mapping[str, Ask], target: UpstreamTarget
) -> tuple[str, EngineInfo]:
    """The kind of the engine, the first of `kinds` whose routes it has, and what it tells. Raises
    `EngineFault`."""
    problems, refusals = list[str](), dict[str, str]()
    for kind, ask in kinds.items():
        try:
            return kind, await ask(endpoint, target)
        except EngineUnusable as fault:  # a proxy may refuse the routes of other kinds so
            refusals.setdefault(str(fault), kind)
        except (RequestRefused, AnswerInvalid) as fault:
            problems.append(f"{kind} ({fault})")
    if len(refusals) == 1:
        raise EngineUnusable(*refusals)
    if refusals:
        reasons = ", ".join(f"{kind} ({problem})" for problem, kind in refusals.items())
        raise EngineUnusable(f"it cannot be used as {reasons}")
    raise AnswerInvalid(f"it answers as none of {', '.join(problems)}")


def vocabulary_texts(vocabulary: UpstreamVocabulary) -> tuple[str, ...]:
    """The texts whose tokens tell vocabularies apart: fixed ones, and control and added tokens."""
    tokens = _distinct_texts([*vocabulary.control_texts, *vocabulary.added_tokens])
    return (*VOCABULARY_TEXTS, *tokens[:_MAX_TOKEN_TEXTS])


def _distinct_texts(texts: Iterable[str]) -> list[str]:
    """The texts of tokens, without those of spaces, and of ids that llama.cpp's converter found no
    token for. Of those that differ in their numbers only, as reserved ones do, which may be
    thousands, the first and the last."""
    alike: dict[str, list[str]] = {}
    for text in sorted(texts, key=lambda text: (len(text), text)):
        if text.strip() and not _PADDING.fullmatch(text):
            alike.setdefault(_DIGITS.sub("0", text), []).append(text)
    return [text for each in alike.values() for text in dict.fromkeys((each[0], each[-1]))]


class VocabularySample:
    """The tokens of the texts that tell vocabularies apart, by our own tokenizer, and their
    `digest`. It reads the vocabulary and tokenizes, so create it on a thread."""

    def __init__(self, vocabulary: UpstreamVocabulary) -> None:
        self._vocabulary = vocabulary
        self._texts = vocabulary_texts(vocabulary)
        self._whole = "\n".join(self._texts)
        self._tokens = vocabulary.tokenize(self._whole, add_special=False, parse_special=True)
        values = array("i", [vocabulary.size, *self._tokens])
        self.digest = hashlib.sha256(values.tobytes()).hexdigest()

    async def check(self, endpoint: Endpoint, api: EngineApi, model: str) -> None:
        """Compare them with those of an engine, in one request if they are the same. Raises
        `EngineUnusable` with the text and both ids at the first that differ."""
        if list(await api.tokenize(endpoint, model, self._whole)) == self._tokens:
            return
        for text in (*self._texts, self._whole):
            own = self._vocabulary.tokenize(text, add_special=False, parse_special=True)
            theirs = await api.tokenize(endpoint, model, text)
            if list(theirs) != own:
                raise EngineUnusable(describe_difference(text, own, theirs))


def describe_difference(text: str, own: Sequence[int], theirs: Sequence[int]) -> str:
    """Why a text shows that the vocabulary of a model is not `own`, that of a tokenizer."""
    for index in range(max(len(own), len(theirs))):
        ours = own[index] if index < len(own) else None
        other = theirs[index] if index < len(theirs) else None
        if ours != other:
            break
    return (
        f"its vocabulary is another one: token {index} of {excerpt(text)} is {other} there, and "
        f"{ours} in the configured tokenizer"
    )


async def find_vector_size(
    endpoint: Endpoint, model: str, vocabulary: UpstreamVocabulary
) -> int | None:
    """The length of the engine's embeddings, None if it has none. Raises `EngineFault`."""
    probe = vocabulary.tokenize(_PROBE_TEXT, add_special=True, parse_special=False)
    try:
        return await EmbeddingRoute().vector_size(endpoint, model, probe)
    except (RequestRefused, EngineUnusable):  # the key was accepted before: this route is closed
        return None


class Prober:
    """Tries the features of one engine. `vector_size` is the length of its embeddings, if any."""

    def __init__(
        self,
        endpoint: Endpoint,
        api: EngineApi,
        info: EngineInfo,
        vocabulary: UpstreamVocabulary,
        vector_size: int | None,
    ) -> None:
        self._endpoint = endpoint
        self._api = api
        self._info = info
        self._vocabulary = vocabulary
        self._pieces = VocabularyPieces(vocabulary)
        self._vector_size = vector_size

    async def features(self) -> Features:
        """Raises `EngineFault` if it is lost meanwhile, or generates nothing that can be used."""
        api, info, name = self._api, self._info, f"{self._api.name} {self._info.version}".strip()
        if not await self._generates():
            return Features(name, frozenset(), generates=False, vector_size=self._vector_size)
        known = await api.known_fields(self._endpoint, info.model)
        takes_grammars = await self._writes(_GRAMMAR, takes_grammars=True)
        forms = [kind for kind in api.forms if await self._writes(_form(kind))]
        return Features(
            engine=name,
            sampling=api.sampling & known,
            constraints=frozenset(forms),
            takes_grammars=takes_grammars,
            grammar_flag="" if takes_grammars else api.grammar_flag,
            brackets_are_control=takes_grammars and api.brackets_are_control,
            max_logprobs=await self._max_logprobs(),
            min_tokens=api.takes_min_tokens and "min_tokens" in known,
            ignore_eos="ignore_eos" in known,
            vector_size=self._vector_size,
            mixes_adapters=api.mixes_adapters,
            separates_projects=self._has_salt(known),
        )

    def _has_salt(self, known: frozenset[str]) -> bool:
        api = self._api
        if api.salt_field and api.salt_field not in known:
            log.warning(
                "%s does not know %s: it shares computed prefixes among all projects",
                self._endpoint.url,
                api.salt_field,
            )
        return api.salt_field in known

    async def _generates(self) -> bool:
        """Whether it generates, as one that embeds may not. Raises `EngineUnusable` if one that
        does not embed takes or writes no token ids."""
        embeds = self._vector_size is not None
        if embeds and not self._api.may_do_both:
            return False
        try:
            await self._generate(_request(), False)
        except (RequestRefused, RequestFailed, TokensMissing) as fault:
            if embeds:
                return False
            if isinstance(fault, RequestFailed):
                raise
            problem = f"a request for two tokens by ids failed: {fault}"
            raise EngineUnusable(f"{problem}. Text mode needs no ids, and no tokenizer") from None
        return True

    async def _writes(self, constraint: Constraint, *, takes_grammars: bool = False) -> bool:
        """Whether two tokens of a constrained output are those that the constraint demands. One
        that is lost twice over it, and then answers without it, does not take it."""
        tokens = list[int]()
        for _ in range(2):
            try:
                tokens, _ = await self._generate(_request(constraint=constraint), takes_grammars)
                break
            except (RequestRefused, AnswerInvalid, RequestFailed):
                return False
            except EngineLost:
                await self._generate(_request(), False)
        text = b"".join(self._pieces.piece(each, special=False) for each in tokens)
        return bool(text) and (_PROBE_TEXT.encode() * 8).startswith(text.strip(b'"'))

    async def _max_logprobs(self) -> int | None:
        limit = self._info.max_logprobs
        for count in (each for each in _LOGPROBS if limit is not None and each <= limit):
            try:
                _, has_logprobs = await self._generate(_request(top_logprobs=count), False)
            except (RequestRefused, AnswerInvalid):
                continue
            if has_logprobs:
                return count
        return None

    async def _generate(
        self, request: SequenceRequest, takes_grammars: bool
    ) -> tuple[list[int], bool]:
        prompt = self._vocabulary.tokenize("Say: ", add_special=True, parse_special=False)
        generation = Generation(request, self._info.model, prompt, 2, takes_grammars=takes_grammars)
        reader, tokens, logprobs = self._api.reader(generation), list[int](), list[object]()

        def read(data: bytes) -> bool:
            chunk = reader.read(data)
            tokens.extend(chunk.tokens)
            logprobs.extend(chunk.logprobs)
            return False

        path, body = self._api.body(generation)
        await self._endpoint.stream(path, body, read, lambda _: None)
        size = self._vocabulary.size
        if not all(0 <= each < size for each in tokens):
            raise AnswerInvalid(f"it wrote tokens that are not in the vocabulary: {tokens}")
        return tokens, bool(logprobs)


def _request(
    constraint: Constraint | None = None, top_logprobs: int | None = None
) -> SequenceRequest:
    return SequenceRequest(
        sequence_id=0,
        model="",
        prompt=array("i"),
        sampling=Sampling(temperature=0.0),
        seed=0,
        choice=0,
        max_tokens=2,
        cache_key=b"",
        resumed=array("i"),
        constraint=constraint,
        top_logprobs=top_logprobs,
    )


def _document(lark: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


_GRAMMAR: Final = Constraint(
    _document(f'start: part\npart: %json {{"const": "{_PROBE_TEXT * 4}"}}'), "grammar"
)


def _form(kind: OutputFormatKind) -> Constraint:
    text = _PROBE_TEXT * 4
    texts = {
        OutputFormatKind.JSON_SCHEMA: json.dumps({"const": text}),
        OutputFormatKind.REGEX: f"({_PROBE_TEXT})+",
        OutputFormatKind.LARK: f'start: "{text}"',
        OutputFormatKind.GBNF: f'root ::= "{text}"',
        OutputFormatKind.CHOICES: json.dumps([text]),
    }
    return Constraint("", "probe", OutputFormat(kind, texts[kind], "probe"))
