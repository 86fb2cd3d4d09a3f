// LangChain.js's classes for servers, by the name of their package.
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { z } from "zod";
import { ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run } from "./scenario.mjs";

const ROOT = BASE_URL.replace(/\/v1$/, "");
const PACKAGE = process.argv[2];
const module = await import(PACKAGE);
const makers = {
  "@langchain/openai": (options) =>
    new module.ChatOpenAI({ ...options, apiKey: KEY, configuration: { baseURL: BASE_URL } }),
  "@langchain/anthropic": (options) =>
    new module.ChatAnthropic({ ...options, apiKey: KEY, anthropicApiUrl: ROOT }),
  "@langchain/ollama": ({ maxTokens, ...options }) =>
    new module.ChatOllama({ ...options, baseUrl: ROOT, numPredict: maxTokens, think: false }),
  "@langchain/groq": (options) =>
    new module.ChatGroq({ ...options, apiKey: KEY, baseUrl: ROOT }),
  "@langchain/mistralai": (options) =>
    new module.ChatMistralAI({ ...options, apiKey: KEY, serverURL: ROOT }),
};
const make = (model, maxTokens = 100) =>
  makers[PACKAGE]({ model, maxTokens, temperature: 0, maxRetries: 0 });
const model = make(MODEL);
const weather = tool(({ city }) => `sunny in ${city}`, {
  name: "get_weather",
  description: "The weather of a city.",
  schema: z.object({ city: z.string() }),
});

async function answer() {
  return (await model.invoke(QUESTION)).text.includes(ANSWER);
}

await run({
  answer,
  stream: async () => {
    const pieces = [];
    for await (const piece of await model.stream(QUESTION)) pieces.push(piece.text);
    return pieces.join("").includes(ANSWER);
  },
  tools: async () => {
    const history = [new HumanMessage(WEATHER)];
    const bound = model.bindTools([weather]);
    history.push(await bound.invoke(history));
    const [call] = history.at(-1).tool_calls;
    const content = await weather.invoke(call.args);
    history.push(new ToolMessage({ content, tool_call_id: call.id, name: call.name }));
    history.push(await bound.invoke(history));
    return bound.invoke([...history, new HumanMessage("Thank you!")]);
  },
  structured: async () => {
    const method = /groq|mistral/.test(PACKAGE) ? "functionCalling" : "jsonSchema";
    const form = model.withStructuredOutput(z.object({ name: z.string() }), { method });
    return typeof (await form.invoke("Name a city.")).name === "string";
  },
  error: async () => {
    try {
      await make("no-such-model").invoke("?");
    } catch (problem) {
      return `${problem.message}`.includes("no-such-model");
    }
    return false;
  },
  cancel: async () => {
    for await (const _ of await make(MODEL, 500).stream(QUESTION)) break;
    return answer();
  },
});
