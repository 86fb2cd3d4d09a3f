/** Vector stores: their files, and searches in them. */

import { useState } from "preact/hooks";
import { get, post, remove } from "./api.js";
import { uploadFile } from "./files.js";
import { Action, ErrorBox, Field, Form, formatBytes, html, notify, Status, Table, Time, useList, useLoad, usePolling } from "./ui.js";

export function VectorStoresView({ id }) {
  return id ? html`<${VectorStore} id=${id} />` : html`<${StoreList} />`;
}

function StoreList() {
  const list = useList("v1/vector_stores");
  const create = async ({ name }) => { location.hash = `#/vector-stores/${(await post("v1/vector_stores", { name })).id}`; };
  return html`<details class="panel"><summary>New vector store</summary>
      <${Form} label="New vector store" submit="Create" onSubmit=${create}><${Field} label="Name" name="name" maxlength="255" required /><//></details>
    <${Table} caption="Vector stores" ...${list} columns=${[
      ["Name", row => html`<a href=${`#/vector-stores/${row.id}`}>${row.name || row.id}</a>`],
      ["Status", row => html`<${Status} value=${row.status} />`],
      ["Files", row => `${row.file_counts.completed} of ${row.file_counts.total}`, true],
      ["Size", row => formatBytes(row.usage_bytes), true],
      ["Last use", row => html`<${Time} value=${row.last_active_at} />`],
      ["", row => html`<${Action} class="danger" confirm=${`Delete the vector store "${row.name || row.id}" with what was embedded of its ${row.file_counts.total} files? The files remain.`} run=${async () => { await remove(`v1/vector_stores/${row.id}`); await list.reload(); }}>Delete<//>`],
    ]} />`;
}

function VectorStore({ id }) {
  const path = `v1/vector_stores/${id}`;
  const store = useLoad(() => get(path), [id]);
  const files = useList(`${path}/files`);
  usePolling(files.reload, 1, files.rows?.some(file => file.status === "in_progress") ?? false);
  const add = async ({ file, stored }, options) => {
    if (!stored && !file.size) throw new Error("Choose a file, or enter the id of a stored one.");
    await post(`${path}/files`, { file_id: stored || (await uploadFile(file, "assistants", options)).id });
    notify("The file is being read and embedded.");
    await files.reload();
  };
  if (store.error) return html`<${ErrorBox} error=${store.error} />`;
  return html`<p><a href="#/vector-stores">All vector stores</a></p>
    <h2>${store.data?.name || id}</h2>
    <div class="panels"><section class="card" aria-label="Search"><h3>Search</h3><${Search} path=${path} /></section>
      <section class="card" aria-label="Add a file"><h3>Add a file</h3>
        <${Form} label="Add a file" submit="Add" onSubmit=${add}><${Field} label="File" name="file" type="file" />
          <${Field} label="Or a stored file" name="stored" placeholder="file-…" /><//></section></div>
    <h2>Files</h2>
    <${Table} caption="Files of the store" ...${files} columns=${[
      ["File", row => html`<${FileName} id=${row.id} /><br /><small><code>${row.id}</code></small>`],
      ["Status", row => html`<${Status} value=${row.status} />${row.last_error && html`<p class="error">${row.last_error.message}</p>`}`],
      ["Size", row => formatBytes(row.usage_bytes), true],
      ["Added", row => html`<${Time} value=${row.created_at} />`],
      ["", row => html`<${Action} class="danger" confirm=${`Remove ${row.id} from the store, with what was embedded of it? The file remains.`} run=${async () => { await remove(`${path}/files/${row.id}`); await files.reload(); }}>Remove<//>`],
    ]} />`;
}

/** The name of a stored file, which lists of stores do not have. */
function FileName({ id }) {
  const { data } = useLoad(() => get(`v1/files/${id}`), [id]);
  return data?.filename ?? "";
}

function Search({ path }) {
  const [results, setResults] = useState(null);
  const search = async ({ query, count }) => {
    setResults((await post(`${path}/search`, { query, max_num_results: Number(count) })).data);
  };
  return html`<${Form} label="Search" submit="Search" onSubmit=${search}>
      <${Field} label="Query" name="query" required /><${Field} label="Results" name="count" type="number" min="1" max="50" defaultValue="5" required /><//>
    ${results && html`<ol class="results" aria-label="Results">${results.map(each => html`<li>
      <p><strong>${each.filename}</strong> <small>score ${each.score.toFixed(3)}</small></p>
      <p class="text">${each.content.map(part => part.text).join("\n")}</p></li>`)}</ol>`}
    ${results?.length === 0 && html`<p class="muted" role="status">Nothing was found.</p>`}`;
}
