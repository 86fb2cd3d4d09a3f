// OpenAI's Agents SDK for Node, over responses or chat completions.
import { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, run as runAgent, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";
import { ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run } from "./scenario.mjs";

setTracingDisabled(true);
const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY, maxRetries: 0 });
const Model = process.argv[2] === "chat" ? OpenAIChatCompletionsModel : OpenAIResponsesModel;
const make = (options = {}, name = MODEL, maxTokens = 100) =>
  new Agent({
    name: "assistant",
    model: new Model(client, name),
    modelSettings: { temperature: 0, maxTokens },
    ...options,
  });

async function answer() {
  return (await runAgent(make(), QUESTION)).finalOutput.includes(ANSWER);
}

await run({
  answer,
  stream: async () => {
    const result = await runAgent(make(), QUESTION, { stream: true });
    const pieces = [];
    for await (const piece of result.toTextStream()) pieces.push(piece);
    return pieces.join("").includes(ANSWER);
  },
  tools: async () => {
    const cities = [];
    const weather = tool({
      name: "get_weather",
      description: "The weather of a city.",
      parameters: z.object({ city: z.string() }),
      execute: ({ city }) => {
        cities.push(city);
        return `sunny in ${city}`;
      },
    });
    const agent = make({ tools: [weather] });
    const first = await runAgent(agent, WEATHER);
    const second = await runAgent(agent, [...first.history, { role: "user", content: "Thank you!" }]);
    return cities.length > 0 && second.finalOutput;
  },
  structured: async () => {
    const agent = make({ outputType: z.object({ name: z.string() }) });
    return typeof (await runAgent(agent, "Name a city.")).finalOutput.name === "string";
  },
  error: async () => {
    try {
      await runAgent(make({}, "no-such-model"), "?");
    } catch (problem) {
      return `${problem.message}`.includes("no-such-model");
    }
    return false;
  },
  cancel: async () => {
    const result = await runAgent(make({}, MODEL, 500), QUESTION, { stream: true });
    for await (const _ of result) break;
    return answer();
  },
});
