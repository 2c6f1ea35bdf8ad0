// A small program over docs/types/dosirak.d.ts: it compiles only where the types say what the interface takes and gives.
import type { ChatBody, Operations } from './dosirak.js';

type Chat = Operations['POST /v1/chat/completions'];

const body: ChatBody = { messages: [{ role: 'user', content: '안녕하세요' }], max_tokens: 64 };
export const first = (answer: Chat['answer']): string | null | undefined => answer.choices[0]?.message.content;
export const asked: Chat['body'] = body;
// @ts-expect-error a number is no message
export const wrong: ChatBody = { messages: 3 };
// @ts-expect-error there is no such field
export const unknown: ChatBody = { ...body, temprature: 1 };
