/** Stored files: upload, list, download, delete. */

import { download, post, remove } from "./api.js";
import { Action, Field, Form, formatBytes, html, notify, Table, Time, useList } from "./ui.js";

const PURPOSES = ["assistants", "batch", "user_data", "vision"];

/** Store a file of an input, with `options` of the request; returns its object. */
export function uploadFile(file, purpose, options) {
  const form = new FormData();
  form.append("purpose", purpose);
  form.append("file", file);
  return post("v1/files", form, options);
}

export function FilesView() {
  const list = useList("v1/files");
  const upload = async ({ file, purpose }, options) => {
    const stored = await uploadFile(file, purpose, options);
    notify(`Stored as ${stored.id}.`);
    await list.reload();
  };
  return html`<details class="panel"><summary>Store a file</summary>
      <${Form} label="Store a file" submit="Store" onSubmit=${upload}>
        <${Field} label="File" name="file" type="file" required />
        <${Field} label="Purpose"><select name="purpose">${PURPOSES.map(each => html`<option>${each}</option>`)}</select><//><//></details>
    <${Table} caption="Files" ...${list} columns=${[
      ["Name", row => row.filename],
      ["Id", row => html`<code>${row.id}</code>`],
      ["Purpose", row => row.purpose],
      ["Size", row => formatBytes(row.bytes), true],
      ["Created", row => html`<${Time} value=${row.created_at} />`],
      ["Expires", row => html`<${Time} value=${row.expires_at} />`],
      ["", row => html`<div class="row"><${Action} run=${() => download(`v1/files/${row.id}/content`, row.filename)}>Download<//>
        <${Action} class="danger" confirm=${`Delete ${row.filename}?`} run=${async () => { await remove(`v1/files/${row.id}`); await list.reload(); }}>Delete<//></div>`],
    ]} />`;
}
