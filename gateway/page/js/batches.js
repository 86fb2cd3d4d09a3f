/** Batches: create one from a file, watch its progress, get its results. */

import { download, post } from "./api.js";
import { uploadFile } from "./files.js";
import { Action, Field, Form, formatNumber, html, Meter, notify, Status, Table, Time, useList, usePolling } from "./ui.js";

const ENDPOINTS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"];
const ACTIVE = ["validating", "in_progress", "finalizing", "cancelling"];

export function BatchesView() {
  const list = useList("v1/batches");
  usePolling(list.reload, 1, list.rows?.some(batch => ACTIVE.includes(batch.status)) ?? false);
  const create = async ({ file, endpoint, hours }, options) => {
    const { id } = await uploadFile(file, "batch", options);
    await post("v1/batches", { input_file_id: id, endpoint, completion_window: `${hours}h` });
    notify("The batch is being checked.");
    await list.reload();
  };
  return html`<details class="panel"><summary>New batch</summary>
      <${Form} label="New batch" submit="Start" onSubmit=${create}>
        <${Field} label="File" name="file" type="file" accept=".jsonl" required hint="One request per line, as in OpenAI's API" />
        <${Field} label="Endpoint"><select name="endpoint">${ENDPOINTS.map(each => html`<option>${each}</option>`)}</select><//>
        <${Field} label="Window in hours" name="hours" type="number" min="1" max="168" defaultValue="24" required /><//></details>
    <${Table} caption="Batches" ...${list} columns=${[
      ["Batch", row => html`<code>${row.id}</code><br /><small>${row.endpoint}</small>`],
      ["Status", row => html`<${Status} value=${row.status} />${row.errors?.data.map(each => html`<p class="error">${each.line ? `Line ${each.line}: ` : ""}${each.message}</p>`)}`],
      ["Progress", row => html`<${Progress} counts=${row.request_counts} />`],
      ["Created", row => html`<${Time} value=${row.created_at} />`],
      ["", row => html`<div class="row">
        ${row.output_file_id && html`<${Action} run=${() => download(`v1/files/${row.output_file_id}/content`, `${row.id}-output.jsonl`)}>Output<//>`}
        ${row.error_file_id && html`<${Action} run=${() => download(`v1/files/${row.error_file_id}/content`, `${row.id}-errors.jsonl`)}>Errors<//>`}
        ${ACTIVE.slice(0, 3).includes(row.status) && html`<${Action} class="danger" confirm=${`Cancel the batch ${row.id}? Lines that have not begun are not answered.`} run=${async () => { await post(`v1/batches/${row.id}/cancel`); await list.reload(); }}>Cancel<//>`}</div>`],
    ]} />`;
}

function Progress({ counts: { total, completed, failed } }) {
  const text = `${formatNumber(completed + failed)} of ${formatNumber(total)}${failed ? `, ${formatNumber(failed)} failed` : ""}`;
  return html`<${Meter} label="Lines" value=${completed + failed} max=${total} text=${text} />`;
}
