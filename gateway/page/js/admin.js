/** The routes under /admin: gRPC calls of operators, with the names of their protos. */

import { get } from "./api.js";

/** A value of an enum as a word: `enumName("KEY_SCOPE_ADMIN", "KEY_SCOPE_")` is "admin". */
export const enumName = (value, prefix) => String(value ?? "").replace(prefix, "").toLowerCase();

/** Read all pages of a list. `field` names the list in the reply. */
export async function listAll(path, field, query = {}) {
  const rows = [];
  for (let token = ""; ;) {
    const page = await get(path, { ...query, page_token: token });
    rows.push(...page[field]);
    token = page.next_page_token;
    if (!token) return rows;
  }
}
