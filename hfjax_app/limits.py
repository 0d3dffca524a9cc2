"""The limits of the app on input and on waiting requests, by the part that applies them.

The range of a single parameter (temperature, steps, seed) is in `chat/sampling/params.py` and `images/request.py`;
limits from the shapes of compiled programs are with the programs.
"""

# HTTP
HTTP_MAX_BODY = 16 << 20  # bytes of a request: a picture of the largest size as text, and a little more
HTTP_MAX_UPLOAD = 10 << 20  # bytes of a file that a page uploads; limits below are stricter
HTTP_MAX_JSON_PARTS = 500_000  # commas and brackets of a body, also in its texts: to read millions stops every stream
HTTP_MAX_JSON_FIELDS = 128  # of one object that a route knows; a body with more unknown ones gets one error
HTTP_MAX_FORM_PARTS = 10_000  # lines of a form that begin as the border between its parts
HTTP_MAX_LOGIN = 16 << 10  # bytes of a form in one line, as a login sends it
HTTP_MAX_HEADERS = 32 << 10  # bytes of a request's headers
HTTP_SMALL_CHUNKS = 1_000  # of a body; more must have on average
HTTP_CHUNK_BYTES = 256
HTTP_HEADERS_S = 20  # to send the headers of a request
HTTP_BODY_S = 20  # to send a body, besides the time that HTTP_BODY_BYTES_PER_S gives it
HTTP_BODY_BYTES_PER_S = 16 << 10
HTTP_STALLED_S = 30  # that a client may read nothing of its answer

# Logins
LOGINS = 10_000  # sessions that are kept, and addresses whose failures are counted
LOGIN_KEPT_S = 7 * 86_400
LOGIN_FAILURES = 10  # of an address in LOGIN_FAILURES_S
LOGIN_FAILURES_S = 60

# Gradio's queue and sessions
EVENTS_AT_ONCE = 160  # of all kinds: more than all chats, pictures and lists together, so one kind blocks no other
EVENTS_WAITING = 128  # of one kind, in its queue, besides those that run
EVENT_MAX_VALUES = 50_000  # in an event's arguments, which Gradio looks through: a conversation has a few for a message
UPLOAD_LEAST = 64 << 10  # bytes that an upload counts for: each makes files and folders
UPLOADS_BYTES = 512 << 20  # of a client, as long as its files are kept
UPLOADS_TOTAL_BYTES = 8 << 30  # of all clients
UPLOADS_WATCHED = 100  # whose progress is kept, each for one page
HTTP_THREADS = 4  # that answer requests for the page and its configuration; more would slow down the event loop
SESSIONS = 1_000  # pages whose values Gradio stores; later ones replace those of the client that has most
SESSIONS_OF_A_CLIENT = 100
SESSION_CHARACTERS = 64  # of the name that a client gives its session; a page's has eleven
RESULTS_BYTES = 64 << 20  # of a client, made and not read yet
RESULTS_TOTAL_BYTES = 1 << 30  # of all clients
RESULTS_KEPT_S = 600  # since something was added or read
RESULTS_EMPTY_KEPT_S = 60
HEARTBEAT_S = 15  # between two messages of a stream

# Clients: a key, a login or an address
CLIENT_RUNNING = 16  # events of one client at the same time; its others wait
CLIENT_MAX_SHARE = 4_096  # of the setting client_requests
RETRY_AFTER_S = 5  # what refused clients are told

# Chat
CHAT_AT_ONCE = 64  # events: running answers and requests that wait for a slot; later ones see nothing until one ends
CHAT_QUEUE = 256  # requests that wait for a slot; later ones are refused
CHAT_MAX_CHARACTERS = 20_000  # of a message or a system prompt, before anything is tokenized
CHAT_MAX_ANSWER_CHARACTERS = 400_000  # of an answer, which the next request contains; enough for a long context
CHAT_MAX_CONVERSATION_CHARACTERS = 4_000_000  # of all messages
CHAT_MAX_COUNTED_TOKENS = 32_768  # of a conversation that /tokenize takes; or twice the context, if that is more
CHAT_MAX_MESSAGES = 1_000
CHAT_MAX_PARTS = 5_000  # texts and pictures of all messages
CHAT_MAX_PICTURES = 8  # of a conversation; each takes a few hundred tokens of the context
CHAT_PICTURES_AT_ONCE = 2  # decoded and prepared at a time, each with up to 400 MB; others wait
CHAT_PICTURES_BYTES = 1 << 30  # of a model's prepared pictures whose answers wait or are made: a hundred of Gemma 3's
CHAT_MAX_NOTE_CHARACTERS = 1_000  # of the line under an answer, which a page sends back; notes of the app are shorter
CHAT_MAX_STOPS = 8  # strings: each is searched for in every piece of an answer
CHAT_MAX_STOP_TOKENS = 64
CHAT_MAX_STOP_CHARACTERS = 100  # of one string: so many characters may be delayed while it could still match

CHAT_MAX_PROMPTS = 32  # of one request for completions
CHAT_MAX_SCORED_TOKENS = 16_384  # of a prompt whose tokens' log-probabilities are wanted: a kilobyte each
TEMPLATE_MAX_VARIABLES = 32  # that a client gives to a chat template
TEMPLATE_MAX_CHARACTERS = 20_000  # of these as JSON

# Constrained answers: a client's schema or expression; llguidance's own limits are in `chat/text/grammar.py`
GRAMMAR_MAX_CHARACTERS = 100_000  # of a schema as JSON
GRAMMAR_MAX_STRING_CHARACTERS = 4_000  # of an expression, or of a text in a schema: each step may look at all of it
GRAMMAR_MAX_DEPTH = 64  # levels of a schema's JSON
GRAMMAR_MAX_MULTIPLE = 100_000  # of all `multipleOf` of a schema: a state each, which take half a second
GRAMMARS_KEPT = 32  # compiled ones
GRAMMARS_COMPILED_AT_ONCE = 2  # threads; others wait

# Tools that a client offers to a chat model
TOOLS_MAX = 128
TOOLS_MAX_CHARACTERS = 100_000  # of all of them as JSON
TOOL_ID_MAX_CHARACTERS = 100  # of a call

# Zero-shot labels, which the chat model scores
ZERO_SHOT_AT_ONCE = 4  # events: they take turns on the device, beside running chats
ZERO_SHOT_MAX_CHARACTERS = 10_000  # of the text; its tokens are counted later
ZERO_SHOT_MAX_LABELS = 10
ZERO_SHOT_MAX_LABEL_CHARACTERS = 60

# Sentiment
SENTIMENT_AT_ONCE = 32  # events: texts of so many visitors share device calls
SENTIMENT_QUEUE = 1_024  # texts that wait for a replica
SENTIMENT_MAX_CHARACTERS = 60_000  # of a text: more than the 8,192 tokens that some classifiers read
SENTIMENT_MAX_TEXTS = 256  # of one call in Python
EXPLAINED_AT_ONCE = 2  # separate threads: a long text takes seconds, and would delay lists in the shared threads

# Tables of texts
LISTS_AT_ONCE = 2  # lists that are classified; single texts have priority
LISTS_WAITING = 16  # events: those lists and the waiting ones
TABLE_MAX_BYTES = 10 << 20  # of a file; characters of pasted lines
TABLE_MAX_ROWS = 100_000  # results stay in memory while a page shows them
TABLE_MAX_COLUMNS = 256
TABLE_MAX_KEY_CHARACTERS = 1_000  # of a field's name in JSON; fields with longer names are ignored
TABLE_MAX_NAME_CHARACTERS = 80  # of a column's name as it is shown; longer ones are cut
WORDS_MAX_TEXTS = 200  # of a list that are explained for the words that matter most
WORDS_MAX_S = 20  # for these; a page then shows what is known

# Images
IMAGES_AT_ONCE = 32  # events: running requests and waiting ones
IMAGES_SERVED_TOGETHER = 4  # requests that take turns on the device; more would only slow each of them down
IMAGE_MAX_CHARACTERS = 10_000  # of a prompt: more than any text encoder reads; what is not read is told
IMAGE_MAX_LOW_WEIGHTS = 16  # of words in a prompt, below 1
IMAGE_MAX_BRACKETS = 300  # of a prompt
IMAGE_MAX_PIECES = 8  # of a prompt that CLIP reads, each of 75 tokens
IMAGE_MAX_SIDE = 2_048  # pixels; a model's own limit is lower, see `images/interface.py`
IMAGE_RESULT_PIXELS = 16_000_000  # of a picture that a part was drawn into; a larger one is shrunk to them
IMAGE_MAX_LORAS = 8  # of a picture
IMAGE_KEPT_MERGES = 3  # of LoRAs and an image model's weights, where there is memory
IMAGE_REMEMBERED_BYTES = 128 << 20  # of what each text encoder made of the last prompts, in the host's memory
IMAGE_WARM_SIZES = 8  # sizes from requests that stay compiled
GALLERY_PICTURES = 24  # of a session that its page shows
GALLERY_ARCHIVE_BYTES = 64 << 20  # of these in one zip file: 24 of 1024 x 1024 pixels have about 40 MB

# Pictures that are sent, and the settings inside them
PICTURE_MAX_BYTES = 10 << 20
PICTURE_MAX_PIXELS = 40_000_000  # a camera's picture; 160 MB when decoded
PICTURE_MAX_SHRUNK_PIXELS = 210_000_000  # of a JPEG file that is shrunk while it is decoded; not of a progressive one
PICTURE_MAX_SIDE = 65_535  # pixels, as in a JPEG file; to scale a line of millions of pixels takes a gigabyte
PICTURES_SENT = 256  # pictures from pages' editors that are not used yet; each brush stroke sends another one
PICTURES_SENT_BYTES = 256 << 20  # of these together
PICTURE_ID_CHARACTERS = 40  # of the number that a page gives such a picture; the page's have about eleven
GENERATION_PARAMETERS_MAX_CHARACTERS = 150_000  # besides the mask; JSON may write six for a character of a prompt
FOREIGN_PARAMETERS_MAX_CHARACTERS = 200_000  # of other programs' notes, such as ComfyUI's graphs
GENERATION_PARAMETERS_MAX_NAME_CHARACTERS = 300  # of a model, a scheduler and the like

# Models that the operator loads
OPERATOR_MAX_CHARACTERS = 400  # of a folder or a hub id
LOADS_WATCHED = 8  # events that watch the load that runs

# Ray Serve
SERVING_AT_ONCE = 10_000  # connections to the ingress: each open page has one or two that last
REPLICA_REQUESTS_BESIDES = 4  # that a replica takes besides those that it serves and as many that wait there
REPLICA_DRAIN_S = 3_600  # that a replica that is to end has for its running answers
REPLICA_STARTS = 3  # attempts to start a replica, before its deployment has failed
