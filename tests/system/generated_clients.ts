// Two clients made from /openapi.json do all with a post; prints what each got, as JSON.
import createClient from "openapi-fetch";

import { client } from "./hey-api/client.gen";
import { addPost, deletePost, getPost, listPosts, replacePost } from "./hey-api/sdk.gen";
import type { paths } from "./schema";

declare const process: { argv: string[] };
const [origin, username, password] = process.argv.slice(2);

async function useOpenapiFetch() {
    const { GET, POST, PUT, DELETE } = createClient<paths>({
        baseUrl: origin,
        headers: { Authorization: `Basic ${btoa(`${username}:${password}`)}` },
    });
    const parseAs = "text"; // its default is JSON, whatever the Content-Type is
    const added = await POST("/post", { body: { post: "one" }, parseAs });
    const invalid = await POST("/post", { body: { post: "" }, parseAs });
    const listed = await GET("/post", { params: { query: { limit: 1000 } } });
    const path = { id: listed.data?.at(-1)?.id ?? 0 };
    const one = await GET("/post/{id}", { params: { path } });
    const params = { path, header: { "If-Match": one.response.headers.get("ETag") ?? "" } };
    const replaced = await PUT("/post/{id}", { params, body: { post: "two" }, parseAs });
    const stale = await PUT("/post/{id}", { params, body: { post: "three" }, parseAs });
    const deleted = await DELETE("/post/{id}", { params: { path }, parseAs });
    const missing = await GET("/post/{id}", { params: { path } });
    return [
        added.data, invalid.error?.pointer, listed.data?.map(({ post }) => post), one.data?.post,
        replaced.data, stale.error?.status, deleted.data, missing.error?.status,
    ];
}

async function useHeyApi() {
    client.setConfig({ baseUrl: origin, auth: `${username}:${password}` });
    const added = await addPost({ body: { post: "one" } });
    const invalid = await addPost({ body: { post: "" } });
    const listed = await listPosts({ query: { limit: 1000 } });
    const path = { id: listed.data?.at(-1)?.id ?? 0 };
    const one = await getPost({ path });
    const headers = { "If-Match": one.response?.headers.get("ETag") ?? "" };
    const replaced = await replacePost({ path, headers, body: { post: "two" } });
    const stale = await replacePost({ path, headers, body: { post: "three" } });
    const deleted = await deletePost({ path, parseAs: "text" });
    const missing = await getPost({ path });
    return [
        added.data, invalid.error?.pointer, listed.data?.map(({ post }) => post), one.data?.post,
        replaced.data, stale.error?.status, deleted.data, missing.error?.status,
    ];
}

async function main() {
    console.log(JSON.stringify([await useOpenapiFetch(), await useHeyApi()]));
}

void main();
