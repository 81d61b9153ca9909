// An OAuth 2.0 issuer (npm: oidc-provider, certified by the OpenID Foundation) and, behind it, a resource server that
// lets a request through to another server only with a token that this issuer knows. For tests/real/test_oauth.py.
//
// node oidc.mjs <directory with node_modules> <port> <lifetime of a token, s> <methods, comma-separated> [upstream URL]
// Prints "ready", then one line for every token request and every refused request. Ends with its standard input.

import http from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [home, port, lifetime, methods, upstream] = process.argv.slice(2);
const found = createRequire(`${home}/package.json`).resolve("oidc-provider");
const { Provider } = await import(pathToFileURL(found).href);

const client = (id, method) => ({
  client_id: id,
  client_secret: "s3cret/with+signs & spaces:%=",
  token_endpoint_auth_method: method,
  grant_types: ["client_credentials"],
  response_types: [],
  redirect_uris: [],
});
const offered = methods.split(",");
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients: [
    ...(offered.includes("client_secret_post") ? [client("by-post", "client_secret_post")] : []),
    ...(offered.includes("client_secret_basic") ? [client("by basic:+", "client_secret_basic")] : []),
  ],
  clientAuthMethods: offered,
  features: { clientCredentials: { enabled: true }, devInteractions: { enabled: false } },
  ttl: { ClientCredentials: Number(lifetime) },
});
provider.on("server_error", (_, error) => console.log(`server error ${error.name}: ${error.message}`));

const answer = provider.callback();

async function guard(request, response) {
  const value = /^Bearer (\S+)$/.exec(request.headers.authorization ?? "")?.[1];
  const token = value && (await provider.ClientCredentials.find(value));
  if (!token || token.isExpired) {
    console.log("refused");
    request.resume();
    response.writeHead(401, { "WWW-Authenticate": 'Bearer error="invalid_token"' }).end();
    return;
  }
  if (!upstream) {
    response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify({ client: token.clientId }));
    return;
  }
  const { authorization, ...headers } = request.headers;
  const onward = http.request(new URL(request.url, upstream), { method: request.method, headers }, (back) => {
    response.writeHead(back.statusCode, back.headers);
    back.pipe(response);
  });
  onward.on("error", () => response.writeHead(502).end());
  request.pipe(onward);
}

const server = http.createServer((request, response) => {
  if (request.url.startsWith("/fhir")) return void guard(request, response);
  if (request.url === "/token") {
    const how = request.headers.authorization ? "basic" : "post";
    response.on("finish", () => console.log(`token ${how} ${response.statusCode}`));
  }
  return answer(request, response);
});
server.listen(Number(port), "127.0.0.1", () => console.log("ready"));
process.stdin.resume().on("end", () => process.exit(0));
