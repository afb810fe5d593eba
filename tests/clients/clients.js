// Runs the official clients against the server, unchanged:
//   node tests/clients/clients.js FOLDER PROGRAM PACKAGE
// FOLDER has the npm packages in node_modules. PACKAGE is the small story model: what it says does not matter, and
// calls and JSON, which it could not write by itself, are forced by what the requests ask for.
'use strict';
const assert = require('assert/strict');
const fs = require('fs');
const os = require('os');
const path = require('path');
const { spawn } = require('child_process');
const { createRequire } = require('module');

const [folder, program, modelPackage] = process.argv.slice(2);
const load = createRequire(path.resolve(folder, 'index.js'));
const OpenAI = load('openai').OpenAI;
const { zodResponseFormat, zodTextFormat } = load('openai/helpers/zod');
const Anthropic = load('@anthropic-ai/sdk').Anthropic;
const ai = load('ai');
const { createOpenAICompatible } = load('@ai-sdk/openai-compatible');
const { z } = load('zod');

const model = 'storyteller';
const story = 'Tell me a story about a dragon and a cake.';
const messages = [{ role: 'user', content: story }];
const key = 'key-for-the-clients';

function startServer(args) {
  const child = spawn(program, ['serve', modelPackage, '--port', '0', '--ctx', '512', ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  let log = '';
  child.stderr.on('data', (data) => { log += data; });
  const ready = new Promise((resolve, reject) => {
    child.stdout.on('data', (data) => resolve(String(data).trim()));
    child.on('exit', (code) => reject(new Error(`the server ended with ${code}: ${log}`)));
  });
  return { child, ready, log: () => log, ended: new Promise((resolve) => child.on('exit', resolve)) };
}

const parameters = {
  type: 'object',
  properties: { city: { type: 'string', enum: ['Paris', 'Rome'] }, days: { type: 'integer', minimum: 1, maximum: 9 } },
  required: ['city', 'days'],
  additionalProperties: false,
};
const person = z.object({ name: z.string().max(12), age: z.number().int().min(1).max(99) });
const sum = async (stream, text) => {
  let all = '';
  for await (const part of stream) all += text(part) ?? '';
  return all;
};
const rejects = async (promise, check) => {
  try {
    await promise;
  } catch (error) {
    return check(error);
  }
  assert.fail('it was not refused');
};

async function metric(url, name) {
  const text = await (await fetch(`${url}/metrics`, { headers: { 'x-api-key': key } })).text();
  return Number(text.split('\n').find((line) => line.startsWith(name + ' ')).split(' ')[1]);
}

function openaiTests(url) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
  const ask = (more) => client.chat.completions.create({ model, messages, seed: 7, max_tokens: 30, ...more });
  const tools = [{ type: 'function', function: { name: 'get_weather', description: 'The weather', parameters } }];
  return {
    async 'models'() {
      const ids = [];
      for await (const one of client.models.list()) ids.push(one.id);
      assert.deepEqual(ids, [model]);
      assert.equal((await client.models.retrieve(model)).id, model);
    },
    async 'chat, streamed and not, is the same'() {
      const whole = await ask();
      const text = whole.choices[0].message.content;
      assert.ok(text.length > 20);
      assert.equal(whole.usage.completion_tokens, 30);
      assert.equal(await sum(await ask({ stream: true }), (chunk) => chunk.choices[0]?.delta.content), text);
      const helper = client.chat.completions.stream({ model, messages, seed: 7, max_tokens: 30, stream_options: { include_usage: true } });
      assert.equal((await helper.finalChatCompletion()).choices[0].message.content, text);
      assert.equal((await helper.totalUsage()).completion_tokens, 30);
    },
    async 'several choices'() {
      const many = await ask({ n: 3 });
      assert.deepEqual(many.choices.map((choice) => choice.index), [0, 1, 2]);
      const helper = client.chat.completions.stream({ model, messages, seed: 7, max_tokens: 30, n: 3 });
      const final = await helper.finalChatCompletion();
      assert.deepEqual(final.choices.map((choice) => choice.message.content), many.choices.map((choice) => choice.message.content));
    },
    async 'logprobs'() {
      const one = await ask({ logprobs: true, top_logprobs: 2, max_tokens: 8 });
      assert.equal(one.choices[0].logprobs.content.length, 8);
      const helper = client.chat.completions.stream({ model, messages, seed: 7, max_tokens: 8, logprobs: true, top_logprobs: 2 });
      assert.deepEqual((await helper.finalChatCompletion()).choices[0].logprobs.content, one.choices[0].logprobs.content);
    },
    async 'tools there and back'() {
      const one = await ask({ tools, tool_choice: 'required', parallel_tool_calls: false, max_tokens: 200 });
      const call = one.choices[0].message.tool_calls[0];
      assert.equal(one.choices[0].finish_reason, 'tool_calls');
      assert.ok(['Paris', 'Rome'].includes(JSON.parse(call.function.arguments).city));
      const helper = client.chat.completions.stream({ model, messages, seed: 7, tools, tool_choice: 'required', parallel_tool_calls: false, max_tokens: 200 });
      const streamed = (await helper.finalChatCompletion()).choices[0].message.tool_calls[0];
      assert.deepEqual(JSON.parse(streamed.function.arguments), JSON.parse(call.function.arguments));
      const next = await ask({ tools, messages: [...messages, one.choices[0].message, { role: 'tool', tool_call_id: call.id, content: 'sunny' }] });
      assert.equal(typeof next.choices[0].message.content, 'string');
    },
    async 'a JSON schema'() {
      const format = zodResponseFormat(person, 'person');
      const one = await client.chat.completions.parse({ model, messages, seed: 3, max_tokens: 200, response_format: format });
      assert.ok(one.choices[0].message.parsed.age >= 1);
    },
    async 'completions'() {
      const create = (more) => client.completions.create({ model, prompt: 'Once upon a time', seed: 7, ...more });
      const text = (await create()).choices[0].text;
      assert.equal(await sum(await create({ stream: true }), (chunk) => chunk.choices[0]?.text), text);
    },
    async 'errors'() {
      await rejects(ask({ audio: { voice: 'x', format: 'mp3' } }), (error) => {
        assert.ok(error instanceof OpenAI.BadRequestError);
        assert.equal(error.param, 'audio');
        assert.equal(error.code, 'unsupported_parameter');
        assert.match(error.requestID, /^req_/);
      });
      await rejects(client.chat.completions.create({ model: 'other', messages }), (error) => assert.ok(error instanceof OpenAI.NotFoundError));
      const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'wrong', maxRetries: 0 });
      await rejects(stranger.models.list(), (error) => assert.ok(error instanceof OpenAI.AuthenticationError));
    },
    async 'an abort stops the generation'() {
      const before = await metric(url, 'moeflux_texts_total{outcome="cancelled"}');
      const stream = await ask({ stream: true, max_tokens: 450, ignore_eos: true });
      for await (const chunk of stream) if (chunk.choices[0]?.delta.content) break;  // the client then aborts
      for (let i = 0; i < 300; ++i) {
        if ((await metric(url, 'moeflux_texts_total{outcome="cancelled"}')) > before) return;
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      assert.fail('the generation went on');
    },
    async 'responses'() {
      const create = (more) => client.responses.create({ model, input: story, max_output_tokens: 30, seed: 7, ...more });
      const one = await create();
      assert.ok(one.output_text.length > 20);
      const helper = client.responses.stream({ model, input: story, max_output_tokens: 30, seed: 7 });
      assert.equal((await helper.finalResponse()).output_text, one.output_text);
      const next = await create({ previous_response_id: one.id, input: 'And then?' });
      assert.equal(next.previous_response_id, one.id);
      assert.equal((await client.responses.retrieve(one.id)).output_text, one.output_text);
      const flat = [{ type: 'function', name: 'get_weather', parameters, strict: true }];
      const called = await client.responses.stream({ model, input: story, tools: flat, tool_choice: 'required', parallel_tool_calls: false }).finalResponse();
      assert.equal(called.output[0].type, 'function_call');
      const output = [{ type: 'function_call_output', call_id: called.output[0].call_id, output: 'sunny' }];
      const after = await create({ input: [{ role: 'user', content: story }, ...called.output, ...output], tools: flat });
      assert.equal(after.object, 'response');
      const parsed = await client.responses.parse({ model, input: story, text: { format: zodTextFormat(person, 'person') } });
      assert.ok(parsed.output_parsed.name.length <= 12);
      await rejects(create({ background: true }), (error) => assert.equal(error.param, 'background'));
      await rejects(create({ previous_response_id: 'resp_none' }), (error) => assert.equal(error.code, 'previous_response_not_found'));
    },
  };
}

function anthropicTests(url) {
  const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
  const create = (more) => client.messages.create({ model, messages, max_tokens: 30, seed: 7, ...more });
  const tools = [{ name: 'get_weather', description: 'The weather', input_schema: parameters }];
  return {
    async 'messages, streamed and not, are the same'() {
      const one = await create();
      assert.equal(one.stop_reason, 'max_tokens');
      const stream = client.messages.stream({ model, messages, max_tokens: 30, seed: 7 });
      const final = await stream.finalMessage();
      assert.deepEqual(final.content.map((block) => block.text), one.content.map((block) => block.text));
      assert.equal(final.usage.output_tokens, 30);
      const raw = await create({ stream: true });
      assert.equal(await sum(raw, (event) => event.delta?.text), one.content[0].text);
      assert.equal((await client.messages.countTokens({ model, messages })).input_tokens, one.usage.input_tokens + one.usage.cache_read_input_tokens);
    },
    async 'tools there and back'() {
      const one = await create({ tools, tool_choice: { type: 'any', disable_parallel_tool_use: true }, max_tokens: 200 });
      assert.equal(one.stop_reason, 'tool_use');
      const call = one.content.find((block) => block.type === 'tool_use');
      const streamed = await client.messages.stream({ model, messages, tools, tool_choice: { type: 'any', disable_parallel_tool_use: true }, max_tokens: 200, seed: 7 }).finalMessage();
      assert.deepEqual(streamed.content.find((block) => block.type === 'tool_use').input, call.input);
      const next = await create({ tools, messages: [...messages, { role: 'assistant', content: one.content }, { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: 'sunny' }] }] });
      assert.equal(next.type, 'message');
    },
    async 'errors and models'() {
      await rejects(create({ container: 'x' }), (error) => {
        assert.ok(error instanceof Anthropic.BadRequestError);
        assert.equal(error.error.error.type, 'invalid_request_error');
      });
      await rejects(client.messages.create({ model: 'other', messages, max_tokens: 5 }), (error) => assert.ok(error instanceof Anthropic.NotFoundError));
      const ids = [];
      for await (const one of client.models.list()) ids.push(one.id);
      assert.deepEqual(ids, [model]);
    },
  };
}

function aiSdkTests(url) {
  const provider = createOpenAICompatible({ name: 'moeflux', baseURL: `${url}/v1`, apiKey: key, supportsStructuredOutputs: true, includeUsage: true });
  const common = { model: provider(model), messages, seed: 7, maxOutputTokens: 30, maxRetries: 0 };
  return {
    async 'text, streamed and not, is the same'() {
      const one = await ai.generateText(common);
      assert.ok(one.text.length > 20);
      assert.equal(one.finishReason, 'length');
      const stream = ai.streamText(common);
      assert.equal(await sum(stream.textStream, (text) => text), one.text);
      assert.equal((await stream.usage).outputTokens, 30);
    },
    async 'tools'() {
      const weather = ai.tool({ description: 'The weather', inputSchema: ai.jsonSchema(parameters), execute: async ({ city }) => `sunny in ${city}` });
      const one = await ai.generateText({ ...common, maxOutputTokens: 200, tools: { weather }, toolChoice: 'required', providerOptions: { moeflux: { parallel_tool_calls: false } } });
      assert.equal(one.finishReason, 'tool-calls');
      assert.match(one.toolResults[0].output, /^sunny in/);
      const stream = ai.streamText({ ...common, maxOutputTokens: 200, tools: { weather }, toolChoice: 'required', providerOptions: { moeflux: { parallel_tool_calls: false } } });
      assert.deepEqual((await stream.toolCalls)[0].input, one.toolCalls[0].input);
    },
    async 'an object'() {
      const one = await ai.generateObject({ ...common, maxOutputTokens: 200, schema: person });
      assert.ok(one.object.age >= 1);
    },
    async 'errors'() {
      await rejects(ai.generateText({ ...common, temperature: 5 }), (error) => assert.match(error.message, /temperature/));
    },
  };
}

async function main() {
  const keys = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'moeflux-clients-')), 'keys');
  fs.writeFileSync(keys, `# for the clients\n${key}\n`);
  const server = startServer(['--api-key-file', keys]);
  let failed = 0, passed = 0;
  try {
    const url = await server.ready;
    for (const [name, tests] of [['openai', openaiTests(url)], ['anthropic', anthropicTests(url)], ['ai', aiSdkTests(url)]])
      for (const [what, test] of Object.entries(tests)) {
        try {
          await test();
          ++passed;
        } catch (error) {
          ++failed;
          console.error(`FAILED ${name}: ${what}\n${error.stack}`);
        }
      }
    assert.ok(!server.log().includes(key), 'the log has a key in it');
    server.child.kill('SIGTERM');
    assert.equal(await server.ended, 0, server.log());
  } finally {
    server.child.kill('SIGKILL');
    fs.rmSync(path.dirname(keys), { recursive: true });
  }
  console.log(`clients: ${passed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
