package ledgerreaper;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationDataProvider;
import org.apache.pulsar.client.api.EncodedAuthenticationParameterSupport;
import org.apache.pulsar.client.api.PulsarClientException;

/**
 * User and password from a file, or OAuth2, for the connector's client, which is Pulsar 2.4.2: that knows no OAuth2, and
 * takes a password only as a parameter, which Spark would log.
 *
 * <p>`make credentials-jar` compiles it. It behaves as streaming/adapters/pulsar/credentials.py and oauth2.py do; its
 * parameters are JSON: basicFile, or keyFile, issuerUrl, audience and scope.
 */
@SuppressWarnings("deprecation") // of Authentication.configure
public final class FileAuthentication implements Authentication, EncodedAuthenticationParameterSupport {
    private static final int TIMEOUT_MS = 10_000;
    private static final int MOST_BYTES = 1 << 20;
    private static final long LIFE_S = 60; // of a token whose life the issuer does not state
    private static final long RETRY_S = 10;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<Map<String, String>, Token> TOKENS = new HashMap<>();

    private Map<String, String> parameters = new HashMap<>();

    @Override
    public String getAuthMethodName() {
        return isBasic() ? "basic" : "token";
    }

    @Override
    public AuthenticationDataProvider getAuthData() throws PulsarClientException {
        try {
            return isBasic() ? new Data("Basic", read("basicFile").trim()) : new Data("Bearer", accessToken());
        } catch (IOException error) {
            throw new PulsarClientException(error.getMessage());
        }
    }

    @Override
    public void configure(String json) {
        try {
            configure(JSON.readValue(json, new TypeReference<Map<String, String>>() {}));
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException("the parameters must be JSON");
        }
    }

    @Override
    public void configure(Map<String, String> given) {
        parameters = new HashMap<>(given);
    }

    @Override
    public void start() {}

    @Override
    public void close() {}

    private boolean isBasic() {
        return parameters.containsKey("basicFile");
    }

    private String read(String parameter) throws IOException {
        String file = parameters.get(parameter);
        try {
            return new String(Files.readAllBytes(Paths.get(file)), StandardCharsets.UTF_8);
        } catch (IOException error) {
            throw new IOException(file + " can't be read (" + error.getClass().getSimpleName() + ")");
        }
    }

    private String accessToken() throws IOException {
        synchronized (TOKENS) {
            Token kept = TOKENS.get(parameters);
            long now = System.nanoTime() / 1_000_000_000;
            if (kept == null || now >= kept.renewAtS) {
                try {
                    kept = requested(now);
                } catch (IOException error) {
                    if (kept == null || now >= kept.endsAtS) {
                        throw error;
                    }
                    kept = new Token(kept.text, now + RETRY_S, kept.endsAtS);
                }
                TOKENS.put(parameters, kept);
            }
            return kept.text;
        }
    }

    private Token requested(long now) throws IOException {
        JsonNode key;
        try {
            key = JSON.readTree(read("keyFile"));
        } catch (JsonProcessingException error) { // without its text, which quotes the file
            throw new IOException(parameters.get("keyFile") + " is not JSON");
        }
        String form = "grant_type=client_credentials"
                + field("client_id", key.path("client_id").asText())
                + field("client_secret", key.path("client_secret").asText())
                + field("audience", parameters.get("audience"))
                + field("scope", parameters.get("scope"));
        String issuer = parameters.get("issuerUrl").replaceAll("/+$", "");
        JsonNode metadata = answer(issuer + "/.well-known/openid-configuration", null);
        JsonNode token = answer(metadata.path("token_endpoint").asText(), form);
        if (token.path("access_token").asText().isEmpty()) {
            throw new IOException(issuer + " answers without an access token");
        }
        long life = token.path("expires_in").asLong() > 0 ? token.path("expires_in").asLong() : LIFE_S;
        return new Token(token.path("access_token").asText(), now + life * 9 / 10, now + life);
    }

    private static String field(String name, String value) throws IOException {
        return value == null || value.isEmpty() ? "" : "&" + name + "=" + URLEncoder.encode(value, "UTF-8");
    }

    /** Sends a form (null: GET) over TLS, or to this machine; follows no redirect. */
    private static JsonNode answer(String url, String form) throws IOException {
        URI uri;
        try {
            uri = new URI(url);
        } catch (Exception error) {
            throw new IOException("the issuer names no valid token_endpoint");
        }
        if (uri.getHost() == null
                || !"https".equals(uri.getScheme())
                        && !("http".equals(uri.getScheme())
                                && InetAddress.getByName(uri.getHost()).isLoopbackAddress())) {
            throw new IOException(url + " is not reached over TLS; the client secret is not sent there");
        }
        HttpRequest.Builder request = HttpRequest.newBuilder(uri).header("Accept", "application/json");
        if (form != null) {
            request.header("Content-Type", "application/x-www-form-urlencoded")
                    .POST(HttpRequest.BodyPublishers.ofString(form));
        }
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        CompletableFuture<HttpResponse<Void>> answer =
                Http.CLIENT.sendAsync(request.build(), HttpResponse.BodyHandlers.ofByteArrayConsumer(part -> {
                    part.ifPresent(body::writeBytes);
                    if (body.size() > MOST_BYTES) {
                        throw new IllegalStateException("the answer is too long");
                    }
                }));
        try {
            // one limit for the whole answer, because all threads wait for it, and an issuer may send it byte by byte
            int status = answer.get(TIMEOUT_MS, TimeUnit.MILLISECONDS).statusCode();
            if (status != HttpURLConnection.HTTP_OK) {
                throw new IOException(url + " answered " + status);
            }
            return JSON.readTree(body.toByteArray());
        } catch (JsonProcessingException error) {
            throw new IOException(url + " answered something that is not JSON");
        } catch (TimeoutException error) {
            throw new IOException(url + " did not answer within " + TIMEOUT_MS / 1000 + " s");
        } catch (ExecutionException error) {
            throw new IOException(url + " does not answer (" + error.getCause() + ")");
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException(url + " was interrupted");
        } finally {
            answer.cancel(true); // closes the connection of an answer that has not ended
        }
    }

    /** Created at the first request: a client has a thread of its own. */
    private static final class Http {
        static final HttpClient CLIENT = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .followRedirects(HttpClient.Redirect.NEVER)
                .proxy(HttpClient.Builder.NO_PROXY)
                .build();
    }

    private static final class Token {
        final String text;
        final long renewAtS;
        final long endsAtS;

        Token(String text, long renewAtS, long endsAtS) {
            this.text = text;
            this.renewAtS = renewAtS;
            this.endsAtS = endsAtS;
        }
    }

    private static final class Data implements AuthenticationDataProvider {
        private final String scheme;
        private final String secret;

        Data(String scheme, String secret) {
            this.scheme = scheme;
            this.secret = secret;
        }

        @Override
        public boolean hasDataForHttp() {
            return true;
        }

        @Override
        public Set<Map.Entry<String, String>> getHttpHeaders() {
            String sent = "Basic".equals(scheme)
                    ? Base64.getEncoder().encodeToString(secret.getBytes(StandardCharsets.UTF_8))
                    : secret;
            return Map.of("Authorization", scheme + " " + sent).entrySet();
        }

        @Override
        public boolean hasDataFromCommand() {
            return true;
        }

        @Override
        public String getCommandData() {
            return secret;
        }
    }
}
