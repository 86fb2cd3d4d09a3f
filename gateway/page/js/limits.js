/** Limits and budgets of projects, keys and models. */

import { enumName, listAll } from "./admin.js";
import { post, remove } from "./api.js";
import { Action, Field, Form, formatNumber, html, Meter, Status, Table, Time, useLoad, usePolling } from "./ui.js";

const UNITS = ["UNIT_REQUESTS", "UNIT_TOKENS", "UNIT_CONCURRENT_REQUESTS", "UNIT_COST"];
const PERIODS = ["PERIOD_MINUTE", "PERIOD_DAY", "PERIOD_MONTH"];
const SUBJECTS = ["", "SUBJECT_PROJECT", "SUBJECT_KEY", "SUBJECT_MODEL"];
const NANOS = 1e9;
/** With more limits, each a request, the view is read once. */
const MAX_POLLED = 20;
const words = (value, prefix) => enumName(value, prefix).replaceAll("_", " ");
const formatAmount = (value, { unit }) => unit === "UNIT_COST"
  ? (value / NANOS).toLocaleString(undefined, { maximumFractionDigits: 6 }) : formatNumber(value);

export function LimitsView() {
  const { data, error, reload } = useLoad(async () => {
    const limits = await listAll("admin/limits", "limits");
    const buckets = await Promise.all(limits.map(({ id }) => listAll(`admin/limits/${id}/buckets`, "buckets")));
    return { limits, buckets: limits.flatMap((limit, index) => buckets[index].map(bucket => toRow(limit, bucket))) };
  }, []);
  usePolling(reload, 2, (data?.limits.length ?? 0) <= MAX_POLLED);
  const create = async ({ id, project, key, model, per, unit, amount: entered, period, mode }) => {
    const amount = unit === "UNIT_COST" ? Math.round(entered * NANOS) : entered;
    const limit = { id, project, key, model, unit, amount, mode, per: per ? [per] : [] };
    if (unit !== "UNIT_CONCURRENT_REQUESTS") limit.period = period;
    await post("admin/limits", { limit });
    await reload();
  };
  return html`<details class="panel"><summary>New limit</summary>
      <${Form} label="New limit" submit="Create" onSubmit=${create}>
        <${Field} label="Id" name="id" required hint="Named in errors; lower-case letters, digits, . _ and -" />
        <div class="grid"><${Field} label="Amount" name="amount" type="number" min="0" step="any" required />
          <${Choice} label="Unit" name="unit" values=${UNITS} prefix="UNIT_" /><${Choice} label="Period" name="period" values=${PERIODS} prefix="PERIOD_" />
          <${Field} label="Beyond it"><select name="mode"><option value="MODE_ENFORCE">refuse</option><option value="MODE_SHADOW">only count (shadow)</option></select><//></div>
        <div class="grid"><${Field} label="Project" name="project" placeholder="all" /><${Field} label="Key" name="key" placeholder="all" /><${Field} label="Model" name="model" placeholder="all" />
          <${Choice} label="Amount for each" name="per" values=${SUBJECTS} prefix="SUBJECT_" none="all together" /></div>
        <small>Cost is in the currency of the price table.</small><//></details>
    <${Table} caption="Limits" rows=${data?.limits} error=${error} empty="There are no limits." columns=${[
      ["Limit", row => html`<strong>${row.id}</strong>`],
      ["Amount", row => formatAmount(row.amount, row), true],
      ["Of", row => words(row.unit, "UNIT_") + (row.period === "PERIOD_UNSPECIFIED" ? "" : ` a ${words(row.period, "PERIOD_")}`)],
      ["Applies to", row => [row.project && `project ${row.project}`, row.key && `key ${row.key}`, row.model && `model ${row.model}`].filter(Boolean).join(", ") || "all requests"],
      ["For each", row => row.per.map(each => words(each, "SUBJECT_")).join(", ") || "–"],
      ["Mode", row => html`<${Status} value=${words(row.mode, "MODE_")} />`],
      ["", row => html`<${Action} class="danger" confirm=${`Delete the limit ${row.id}?`} run=${async () => { await remove(`admin/limits/${row.id}`); await reload(); }}>Delete<//>`],
    ]} />
    ${data && data.limits.length > 0 && html`<h2>What is left</h2>
    <${Table} caption="What is left" rows=${data.buckets} empty="None was used in the last 32 days." columns=${[
      ["Limit", row => html`<strong>${row.limit.id}</strong>`],
      ["For", row => row.subject],
      ["Used or held", row => html`<${Meter} label=${`${row.limit.id} for ${row.subject}, used or held`} value=${row.taken} max=${row.amount} text=${`${formatAmount(row.taken, row.limit)} of ${formatAmount(row.amount, row.limit)}`} />`],
      ["Of these held", row => formatAmount(row.held, row.limit), true],
      ["Left", row => formatAmount(row.remaining, row.limit), true],
      ["Resets", row => row.reset_time ? html`<${Time} value=${row.reset_time} />` : describeRefill(row)],
    ]} />
    <p class="muted">Inference services hold what running requests have reserved, and some in advance.</p>`}`;
}

/** One amount of a limit as a row of the table. */
function toRow(limit, { project, key, model, reset_time, ...numbers }) {
  const [amount, used, held, remaining] = ["amount", "used", "held", "remaining"].map(name => Number(numbers[name]));
  const id = JSON.stringify([limit.id, project, key, model]);
  const subject = [project, key, model].filter(Boolean).join(", ") || "all";
  return { id, limit, subject, reset_time, amount, held, remaining, taken: Math.max(used + held, amount - remaining) };
}

function describeRefill({ limit, taken, amount }) {
  if (limit.period !== "PERIOD_MINUTE") return "–";
  return taken ? `full in ${Math.ceil(60 * taken / amount)} s` : "full";
}

function Choice({ label, name, values, prefix, none }) {
  return html`<${Field} label=${label}><select name=${name}>${values.map(each => html`<option value=${each}>${words(each, prefix) || none}</option>`)}</select><//>`;
}
