// Clients for Node whose calls have the shape of OpenAI's package, by the name of their package.
import { ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run } from "./scenario.mjs";

const ROOT = BASE_URL.replace(/\/v1$/, "");
const PACKAGE = process.argv[2];
const [name, kind] = PACKAGE.split("#");
const module = await import(name);
const makers = {
  "groq-sdk": () => new module.Groq({ baseURL: ROOT, apiKey: KEY, maxRetries: 0 }),
  "together-ai": () => new module.Together({ baseURL: BASE_URL, apiKey: KEY, maxRetries: 0 }),
  "@cerebras/cerebras_cloud_sdk": () =>
    new module.Cerebras({ baseURL: ROOT, apiKey: KEY, maxRetries: 0, warmTCPConnection: false }),
  "portkey-ai": () => new module.Portkey({ baseURL: BASE_URL, apiKey: KEY }),
  "@huggingface/inference": () => {
    const client = new module.InferenceClient(KEY, { endpointUrl: ROOT });
    const create = (body) =>
      body.stream ? client.chatCompletionStream(body) : client.chatCompletion(body);
    return { chat: { completions: { create } } };
  },
  "openai#azure": () =>
    new module.AzureOpenAI({ endpoint: ROOT, apiKey: KEY, apiVersion: "2024-10-21", maxRetries: 0 }),
};
const client = makers[PACKAGE]();
const create = (body) => client.chat.completions.create({ model: MODEL, temperature: 0, ...body });
const ask = (content) => [{ role: "user", content }];
const schema = (field) => ({
  type: "object",
  properties: { [field]: { type: "string" } },
  required: [field],
  additionalProperties: false,
});
const weather = {
  type: "function",
  function: { name: "get_weather", description: "The weather of a city.", parameters: schema("city") },
};

async function answer() {
  const reply = await create({ messages: ask(QUESTION) });
  return reply.choices[0].message.content.includes(ANSWER);
}

await run({
  answer,
  stream: async () => {
    const pieces = [];
    for await (const piece of await create({ messages: ask(QUESTION), stream: true })) {
      pieces.push(piece.choices[0]?.delta?.content ?? "");
    }
    return pieces.join("").includes(ANSWER);
  },
  tools: async () => {
    const messages = ask(WEATHER);
    const first = await create({ messages, tools: [weather], tool_choice: "required" });
    const { message } = first.choices[0];
    const [call] = message.tool_calls;
    const { city } = JSON.parse(call.function.arguments);
    messages.push(message, { role: "tool", tool_call_id: call.id, content: `sunny in ${city}` });
    const second = await create({ messages, tools: [weather] });
    messages.push(second.choices[0].message, ...ask("Thank you!"));
    return (await create({ messages, tools: [weather] })).choices[0].message;
  },
  structured: async () => {
    const json_schema = { name: "city", schema: schema("name") };
    const response_format = { type: "json_schema", json_schema };
    const reply = await create({ messages: ask("Name a city."), response_format });
    return typeof JSON.parse(reply.choices[0].message.content).name === "string";
  },
  error: async () => {
    try {
      await create({ model: "no-such-model", messages: ask("?") });
    } catch (problem) {
      const body = problem.httpResponse?.body ?? "";
      return `${problem.message} ${JSON.stringify(body)}`.includes("no-such-model");
    }
    return false;
  },
  cancel: async () => {
    const long = { messages: ask(QUESTION), max_tokens: 500, stream: true };
    for await (const _ of await create(long)) break;
    return answer();
  },
});
