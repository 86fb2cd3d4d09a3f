"""Bodies of OpenAI requests: JSON text in, a validated body and then a gRPC request out."""

from openai_wire.requests.adapters import (
    AdapterBody,
    AdapterFields,
    AdapterUpdateBody,
    LoadLoraBody,
    NamedPathBody,
    UnloadLoraBody,
)
from openai_wire.requests.batches import (
    BatchBody,
    create_batch_request,
    list_batches_request,
)
from openai_wire.requests.chat import ChatCompletionBody, chat_request, parse_chat
from openai_wire.requests.completions import CompletionBody, parse_completion, prompt_requests
from openai_wire.requests.embeddings import EmbeddingBody, embed_request, parse_embedding
from openai_wire.requests.files import (
    CompleteUploadBody,
    FileFields,
    UploadBody,
    complete_upload_request,
    create_upload_request,
    file_header,
    list_files_request,
)
from openai_wire.requests.json_body import parse_array, parse_object
from openai_wire.requests.reranking import RerankBody, parse_rerank, rerank_request

__all__ = [
    "AdapterBody",
    "AdapterFields",
    "AdapterUpdateBody",
    "BatchBody",
    "ChatCompletionBody",
    "CompleteUploadBody",
    "CompletionBody",
    "EmbeddingBody",
    "FileFields",
    "LoadLoraBody",
    "NamedPathBody",
    "RerankBody",
    "UnloadLoraBody",
    "UploadBody",
    "chat_request",
    "complete_upload_request",
    "create_batch_request",
    "create_upload_request",
    "embed_request",
    "file_header",
    "list_batches_request",
    "list_files_request",
    "parse_array",
    "parse_chat",
    "parse_completion",
    "parse_embedding",
    "parse_object",
    "parse_rerank",
    "prompt_requests",
    "rerank_request",
]
