// OpenAI's package for Node: chat completions, with the tool runner that replays its history.
import OpenAI from "openai";
import { ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run } from "./scenario.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY, maxRetries: 0 });
const options = { model: MODEL, temperature: 0, max_tokens: 100 };
const ask = (content) => [{ role: "user", content }];

async function answer() {
  const reply = await client.chat.completions.create({ ...options, messages: ask(QUESTION) });
  return reply.choices[0].message.content.includes(ANSWER);
}

await run({
  answer,
  stream: async () => {
    const stream = client.chat.completions.stream({ ...options, messages: ask(QUESTION) });
    let pieces = 0;
    stream.on("content", () => pieces++);
    const text = await stream.finalContent();
    return pieces > 0 && text.includes(ANSWER);
  },
  tools: async () => {
    const cities = [];
    const tool = {
      type: "function",
      function: {
        name: "get_weather",
        description: "The weather of a city.",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
        parse: JSON.parse,
        function: ({ city }) => {
          cities.push(city);
          return `sunny in ${city}`;
        },
      },
    };
    const runner = client.chat.completions.runTools({
      ...options,
      messages: ask(WEATHER),
      tools: [tool],
    });
    await runner.done();
    const messages = [...runner.messages, ...ask("Thank you!")];
    const last = await client.chat.completions.create({ ...options, messages });
    return cities.length > 0 && last.choices[0].finish_reason;
  },
  structured: async () => {
    const schema = {
      type: "object",
      properties: { name: { type: "string" } },
      required: ["name"],
      additionalProperties: false,
    };
    const reply = await client.chat.completions.parse({
      ...options,
      messages: ask("Name a city."),
      response_format: { type: "json_schema", json_schema: { name: "city", strict: true, schema } },
    });
    return typeof JSON.parse(reply.choices[0].message.content).name === "string";
  },
  error: async () => {
    try {
      await client.chat.completions.create({ ...options, model: "no-such-model", messages: ask("?") });
    } catch (problem) {
      return problem instanceof OpenAI.NotFoundError && problem.code === "model_not_found";
    }
    return false;
  },
  cancel: async () => {
    const stream = await client.chat.completions.create({
      ...options,
      max_tokens: 500,
      messages: ask(QUESTION),
      stream: true,
    });
    for await (const _ of stream) {
      stream.controller.abort();
      break;
    }
    return answer();
  },
});
