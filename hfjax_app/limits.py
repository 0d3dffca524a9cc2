"""How much may come from outside, and how many may wait: every such bound of the app, by the part that keeps it.

The range of a single parameter (temperature, steps, seed) stands with the parameter, in `chat/sampling/params.py` and
`images/request.py`; what the shapes of a compiled program bound stands with the program.
"""

# HTTP
HTTP_MAX_BODY = 16 << 20  # bytes of a request: a picture of the largest size as text, and a little more
HTTP_MAX_UPLOAD = 10 << 20  # bytes of a file that a page uploads; the parts below look closer

# Gradio's queue and sessions
EVENTS_AT_ONCE = 160  # of all kinds: more than chats, pictures and lists that may wait together, so none is kept out
EVENTS_WAITING = 128  # of one kind: for others of this kind to end
SESSIONS = 1_000  # pages and API calls whose values Gradio keeps: 200 kB for each call, forgotten only for others

# Chat
CHAT_AT_ONCE = 64  # events: answers and those in line for a slot; later ones are shown nothing until one ends
CHAT_QUEUE = 256  # requests in line for a slot; later ones are refused
CHAT_MAX_CHARACTERS = 20_000  # of a message or a system prompt, before anything is tokenized
CHAT_MAX_ANSWER_CHARACTERS = 400_000  # of an answer, which comes back with the next question: a long context's
CHAT_MAX_CONVERSATION_CHARACTERS = 4_000_000  # of all messages
CHAT_MAX_MESSAGES = 1_000
CHAT_MAX_NOTE_CHARACTERS = 1_000  # of the line under an answer that a page sends back; ours have some hundred
CHAT_MAX_STOPS = 8  # strings: each is looked for in every piece of an answer
CHAT_MAX_STOP_CHARACTERS = 100  # of one: so many may be held back from the reader

# Labels of the visitor's own, which the chat model scores
ZERO_SHOT_AT_ONCE = 4  # events: they take turns on the device, beside running chats
ZERO_SHOT_MAX_CHARACTERS = 10_000  # of the text; its tokens are counted later
ZERO_SHOT_MAX_LABEL_CHARACTERS = 60

# Sentiment
SENTIMENT_AT_ONCE = 32  # events: texts of so many visitors share device calls
SENTIMENT_QUEUE = 1_024  # texts in line for a device call
SENTIMENT_MAX_CHARACTERS = 10_000  # of a text: several times the 512 tokens that most classifiers read
SENTIMENT_MAX_TEXTS = 256  # of one call in Python
EXPLAINED_AT_ONCE = 2  # threads of their own: a long text takes seconds, which lists would wait for in the shared ones

# Tables of texts
LISTS_AT_ONCE = 2  # lists that are judged; single texts go before them
LISTS_WAITING = 16  # events: those lists and the ones in line
TABLE_MAX_BYTES = 10 << 20  # of a file; characters of pasted lines
TABLE_MAX_ROWS = 100_000  # results are kept in memory while a page shows them
TABLE_MAX_COLUMNS = 256
TABLE_MAX_KEY_CHARACTERS = 1_000  # of a field's name in JSON; longer ones are no column
TABLE_MAX_NAME_CHARACTERS = 80  # of a column's name as it is shown; longer ones are cut

# Images
IMAGES_AT_ONCE = 32  # events: requests that draw and those in line
IMAGES_SERVED_TOGETHER = 4  # requests that take turns on the device; more would only make every one of them slower
IMAGE_MAX_CHARACTERS = 1_000  # of a prompt: more than the 77 tokens that most text encoders read
IMAGE_MAX_SIDE = 2_048  # pixels; a model's own limit is lower, see `images/pipeline.py`
IMAGE_WARM_SIZES = 8  # that visitors asked for and that stay compiled
GALLERY_PICTURES = 24  # of a session that its page shows

# Pictures that are sent, and the settings inside them
PICTURE_MAX_BYTES = 10 << 20
PICTURE_MAX_PIXELS = 40_000_000  # what today's cameras make; 160 MB when decoded
PICTURES_SENT = 256  # that pages' editors have sent and not asked for; each stroke of a brush sends another
PICTURES_SENT_BYTES = 256 << 20  # of these together
PICTURE_ID_CHARACTERS = 40  # of the number that a page gives such a picture; the page's have about eleven
GENERATION_PARAMETERS_MAX_CHARACTERS = 20_000  # besides the mask
GENERATION_PARAMETERS_MAX_NAME_CHARACTERS = 300  # of a model, a scheduler and the like
